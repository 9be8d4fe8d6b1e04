"""Which linears an adapter stands on, how wide and how strong each pair is: PEFT's own settings.

Meaning as in peft: `target_modules` by name (whole, or the end after a dot) or as one regular
expression of the whole name, `rank_pattern` and `alpha_pattern` by the end of the name, rsLoRA's
scaling alpha / sqrt(rank) (https://arxiv.org/abs/2312.03732).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import regex

from artifacts.architecture import Architecture
from artifacts.errors import BadInput
from artifacts.validation import shown

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""A linear of a decoder layer; the modules an adapter may target."""
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
ALL_LINEAR = "all-linear"
LONGEST_PATTERN = 1000
"""Characters of a regular expression."""
PATIENCE = 1.0
"""Seconds in which a pattern must have fitted a name or not. Some would take longer than anybody
lives, and nobody can tell by looking."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank additions to some linears: W + scaling * B @ A, with A [rank, in], B [out, rank]."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | str
    """Names of linears, or one regular expression that fits their whole names."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Other ranks, by a pattern of the end of a module's name; the first that fits counts."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Other alphas, in the same way."""
    rslora: bool = field(default=False, kw_only=True)
    """Whether scaling is alpha / sqrt(rank) instead of alpha / rank."""
    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    """Layers that have pairs, if not all."""
    excluded: tuple[str, ...] | str = field(default=(), kw_only=True)
    """Targets that have none, named in the same way."""

    @property
    def scaling(self) -> float:
        """The factor on B @ A where no pattern says otherwise."""
        return self._scaling(self.alpha, self.rank)

    def rank_of(self, module: str) -> int:
        """The inner width of a module's pair."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """The factor on a module's B @ A."""
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return self._scaling(alpha, self.rank_of(module))

    def selects(self, module: str) -> bool:
        """Whether a linear of this Hugging Face name (`model.layers.0.self_attn.q_proj`) is one."""
        if _named(self.excluded, module) or not _named(self.targets, module):
            return False
        if self.layers is None or isinstance(self.targets, str):
            return True
        found = _LAYER.match(module)
        return found is not None and int(found[1]) in self.layers

    def shapes(
        self, architecture: Architecture
    ) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """Module name -> (shape of A, shape of B) of every pair, in the model's order."""
        found = {}
        for module, (out, width) in linears(architecture).items():
            if self.selects(module):
                rank = self.rank_of(module)
                found[module] = ((rank, width), (out, rank))
        return found

    def unused(self, modules: Iterable[str]) -> list[str]:
        """Targets and patterns that fit none of the modules: whoever wrote them meant something."""
        modules = list(modules)
        alone = [self.targets] if isinstance(self.targets, str) else [(t,) for t in self.targets]
        if self.excluded:  # a target may be excluded everywhere; peft itself writes such files
            alone = []
        found = [
            f"target {each if isinstance(each, str) else each[0]}"
            for each in alone
            if not any(_named(each, module) for module in modules)
        ]
        for name in ("rank_pattern", "alpha_pattern"):
            for key in getattr(self, name):
                if not any(_fits(key, module) for module in modules):
                    found.append(f"{name} {key}")
        return found

    def _scaling(self, alpha: float, rank: int) -> float:
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def linears(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Module name -> (out, in) of every linear that an adapter may stand on, in the model's order.

    The output head is none of them.
    """
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in architecture.tensor_shapes().items()
        if name.removesuffix(".weight").rsplit(".", 1)[-1] in PROJECTIONS and len(shape) == 2
    }


def problem_with_pattern(text: Any) -> str | None:
    """Why a text from a file cannot serve as a regular expression, or None.

    Patterns come from strangers, so it is tried on names as models have them, with patience.
    """
    if not isinstance(text, str) or not text:
        return "no text"
    if len(text) > LONGEST_PATTERN:
        return f"longer than {LONGEST_PATTERN} characters"
    try:
        re.compile(text)  # peft's own kind
        for name in ("model.layers.10.self_attn.q_proj", "model.layers.10.mlp.down_proj"):
            _named(text, name)
            _fits(text, name)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        return f"no regular expression: {error}"
    except BadInput:
        return f"one that takes more than {PATIENCE:g} s to try on a name"
    return None


def _named(names: tuple[str, ...] | str, module: str) -> bool:
    if isinstance(names, str):
        return names == ALL_LINEAR or _whole(names, module)
    return any(module == name or module.endswith(f".{name}") for name in names)


def _by_pattern(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    for key, value in patterns.items():
        if _fits(key, module):
            return value
    return otherwise


def _fits(pattern: str, module: str) -> bool:
    return _whole(rf"(.*\.)?({pattern})", module)


def _whole(pattern: str, name: str) -> bool:
    """Whether a pattern fits all of a name. Raises BadInput if it takes too long to tell."""
    try:
        return regex.fullmatch(pattern, name, timeout=PATIENCE) is not None
    except TimeoutError:
        raise BadInput(
            f"pattern {shown(pattern)}: takes more than {PATIENCE:g} s to try on {name}; "
            "fewer repetitions would be right"
        ) from None
