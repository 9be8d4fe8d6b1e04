"""Ways in which a model's rotary frequencies were stretched for longer contexts.

Each acts on the plain frequencies theta^(-2i/E), i < E/2, and does not depend on the length at
hand. Definitions as in transformers' `modeling_rope_utils.py`: linear (kaiokendev), Llama 3.1's,
and YaRN (https://arxiv.org/abs/2309.00071).
"""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, lt=1e6)]
Positions = Annotated[int, Field(gt=0, lt=1 << 31)]


class _Scaling(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class LinearScaling(_Scaling):
    """Every position counts 1/factor."""

    rope_type: Literal["linear"] = "linear"
    factor: Positive
    """How much longer the context became."""

    def apply(self, frequency: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
        """The stretched frequencies, and the factor on cosine and sine."""
        return frequency / frequency.dtype.type(self.factor), 1.0


class Llama3Scaling(_Scaling):
    """Long waves are stretched by factor, short ones kept, those between are mixed."""

    rope_type: Literal["llama3"] = "llama3"
    factor: Positive
    """How much the longest waves are stretched."""
    low_freq_factor: Positive
    """Waves longer than original_max_position_embeddings / this are stretched in full."""
    high_freq_factor: Positive
    """Waves shorter than original_max_position_embeddings / this are kept."""
    original_max_position_embeddings: Positions
    """Positions before the stretching."""

    @model_validator(mode="after")
    def _ordered(self) -> "Llama3Scaling":
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor {self.high_freq_factor} must be above low_freq_factor "
                f"{self.low_freq_factor}"
            )
        return self

    def apply(self, frequency: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
        """The stretched frequencies, and the factor on cosine and sine."""
        number = frequency.dtype.type
        low, high = self.low_freq_factor, self.high_freq_factor
        wave = number(2 * math.pi) / frequency  # positions of a whole turn
        turns = number(self.original_max_position_embeddings) / wave
        kept = np.clip((turns - number(low)) / number(high - low), 0, 1).astype(frequency.dtype)
        return (1 - kept) * (frequency / number(self.factor)) + kept * frequency, 1.0


class YarnScaling(_Scaling):
    """Waves by the number of turns they make in the original context, and sharper attention."""

    rope_type: Literal["yarn"] = "yarn"
    factor: Annotated[float, Field(ge=1, lt=1e6)]
    """How much longer the context became."""
    original_max_position_embeddings: Positions
    """Positions before the stretching."""
    attention_factor: Positive | None = None
    """Factor on cosine and sine; by default 0.1 ln(factor) + 1."""
    beta_fast: Positive = 32.0
    """Waves with more turns than this are kept."""
    beta_slow: Positive = 1.0
    """Waves with fewer turns than this are stretched in full."""
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    """Together they replace the default attention factor by the quotient of theirs."""
    truncate: bool = True
    """Whether the borders between the kinds of waves are rounded outwards to whole features."""

    @model_validator(mode="after")
    def _both(self) -> "YarnScaling":
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError("mscale and mscale_all_dim go together; one of them is missing")
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast} is below beta_slow {self.beta_slow}")
        return self

    @property
    def sharpness(self) -> float:
        """The factor on cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        grown = 0.1 * math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (grown * self.mscale + 1) / (grown * self.mscale_all_dim + 1)
        return grown + 1

    def apply(self, frequency: np.ndarray, theta: float) -> tuple[np.ndarray, float]:
        """The stretched frequencies, and the factor on cosine and sine."""
        count, number = len(frequency), frequency.dtype.type
        low, high = (
            self._feature(self.beta_fast, theta, count),
            self._feature(self.beta_slow, theta, count),
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * count - 1)
        if low == high:
            high += 0.001
        feature = np.arange(count, dtype=frequency.dtype)
        stretched = np.clip((feature - number(low)) / number(high - low), 0, 1)
        stretched = stretched.astype(frequency.dtype)
        scaled = frequency / number(self.factor) * stretched + frequency * (1 - stretched)
        return scaled, self.sharpness

    def _feature(self, turns: float, theta: float, count: int) -> float:
        """Index of the feature whose wave makes so many turns in the original context."""
        length = self.original_max_position_embeddings
        return count * math.log(length / (turns * 2 * math.pi)) / math.log(theta)


Scaling = LinearScaling | Llama3Scaling | YarnScaling
RopeScaling = Annotated[Scaling, Field(discriminator="rope_type")]
"""As a field of a model."""
ROPE_TYPES = ("linear", "llama3", "yarn")


def scaled(
    frequency: np.ndarray, theta: float, scaling: Scaling | None
) -> tuple[np.ndarray, float]:
    """Frequencies [E/2] of a float type, stretched in that type, and the factor on cos and sin."""
    return (frequency, 1.0) if scaling is None else scaling.apply(frequency, theta)
