"""Sampling profiles: how text is drawn from a model, fixed, recorded and hashed.

The named ones are the files in `profiles/`. A config may name one, name a file of its own, or give
the values. Whichever it is, the values themselves become part of the run's identity.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from artifacts.digest import sha256_json
from artifacts.errors import BadInput
from artifacts.fields import Count
from artifacts.yaml_text import read_yaml

PROFILES = Path(__file__).parent / "profiles"


class Sampling(BaseModel):
    """A sampling profile."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    do_sample: bool
    """Draw tokens at random; otherwise the most likely one is taken at every step."""
    temperature: float = Field(ge=0, le=100)
    """Logits are divided by it; 0 is greedy."""
    top_p: float = Field(gt=0, le=1)
    """Draw from the fewest tokens that hold this share of the probability; 1 leaves all."""
    top_k: Count = Field(ge=0)
    """Draw from this many most likely tokens; 0 leaves all."""
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    """Logits of tokens that prompt or text hold are divided by it where positive, multiplied where
    negative (Keskar et al. 2019, arXiv:1909.05858, as transformers has it); 1 changes nothing."""
    seed: int = Field(ge=0, lt=2**63)
    """Each request draws from its own generator, made from this, so batches change nothing."""
    max_tokens: Count = Field(gt=0)
    """Length at which a generated text is cut, tokens."""
    stop: tuple[str, ...] = ()
    """Texts at which generation ends, besides those of the task."""

    @model_validator(mode="after")
    def _consistent(self) -> "Sampling":
        if self.do_sample and self.temperature == 0:
            raise ValueError("do_sample with temperature 0 draws nothing; set do_sample: false")
        if any(not text for text in self.stop):
            raise ValueError("stop holds an empty text; leave it out")
        return self

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return not self.do_sample

    def used(self) -> list[str]:
        """Names of the parameters that take part when a text is written."""
        drawing = () if self.greedy else ("temperature", "top_p", "top_k", "seed")
        return ["do_sample", *drawing, "repetition_penalty", "max_tokens", "stop"]

    def digest(self) -> str:
        """sha256 of the profile's values."""
        return sha256_json(self.model_dump(mode="json"))


def profile_names() -> list[str]:
    """Names of the profiles that come with the project."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def _named(value: Any) -> Any:
    """A profile's values, if `value` is its name or its file."""
    if not isinstance(value, str):
        return value
    named = value in profile_names()
    if not named and not value.endswith((".yaml", ".yml")):
        names = ", ".join(profile_names())
        raise ValueError(f"no such profile; {names}, or a path to a .yaml file would do")
    path = PROFILES / f"{value}.yaml" if named else Path(value)
    try:
        values = read_yaml(path)
    except BadInput as error:
        raise ValueError("; ".join(error.problems)) from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a profile's keys and values")
    return values


def profile(name: str) -> Sampling:
    """The profile of this name or file. Raises ValueError if there is none."""
    return Sampling.model_validate(_named(name))


SamplingProfile = Annotated[
    Sampling, BeforeValidator(_named, json_schema_input_type=str | Sampling)
]
"""A config field that takes a profile's name, a file, or the values."""
