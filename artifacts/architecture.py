"""The Llama family as one description: Llama, Mistral, Qwen2 and Qwen3 differ in a few flags.

Converts from and to Hugging Face's `config.json`, and refuses by name what it does not support.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from artifacts.errors import BadInput
from artifacts.hf_fields import (
    BIASES,
    HF_CLASS,
    HF_NAMES,
    WINDOWED,
    rope_of,
    rope_type_of,
    unsupported,
    window_of,
)
from artifacts.json_files import read_object
from artifacts.rope import RopeScaling
from artifacts.validation import file_sentences

Family = Literal["llama", "mistral", "qwen2", "qwen3"]

Size = Annotated[int, Field(gt=0, lt=1 << 31)]
"""No model comes near the end; what lies beyond is a mistake, or meant to hang its reader."""


class Architecture(BaseModel):
    """A decoder's shape. Sizes are numbers of features unless stated otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    family: Family = Field(
        "llama",
        description="sets the Hugging Face class; qwen2 has q/k/v biases, qwen3 has q/k norms",
    )
    vocab_size: Size = Field(description="rows of the embedding")
    hidden_size: Size = Field(description="width of the residual stream")
    layers: int = Field(gt=0, le=10_000, description="number of decoder layers")
    heads: Size = Field(description="number of query heads")
    kv_heads: Size = Field(description="number of key/value heads; divides `heads`")
    head_dim: Size = Field(description="features of one head; even")
    intermediate_size: Size = Field(description="width of the SwiGLU")
    max_positions: Size = Field(description="longest trained sequence, tokens")
    rope_theta: float = Field(10000.0, gt=0, description="base of the rotary frequencies")
    rms_norm_eps: float = Field(1e-6, gt=0, description="added to the mean square in RMSNorm")
    tied_head: bool = Field(True, description="the output head is the embedding")
    rope_scaling: RopeScaling | None = Field(
        default=None, description="how the rotary frequencies were stretched"
    )
    sliding_window: Size | None = Field(
        default=None, description="tokens a query sees, itself included; all before it if null"
    )
    attention_bias: bool = Field(
        default=False, description="llama, qwen3: q, k, v and o projections have biases"
    )
    mlp_bias: bool = Field(
        default=False, description="llama: gate, up and down projections have biases"
    )

    @property
    def qkv_bias(self) -> bool:
        """Whether q, k and v projections have biases."""
        return self.family == "qwen2" or self.attention_bias

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys pass an RMSNorm per head before the rotation."""
        return self.family == "qwen3"

    @model_validator(mode="after")
    def _fits(self) -> "Architecture":
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even for the rotary embedding")
        for name, families in BIASES.items():
            if getattr(self, name) and self.family not in families:
                raise ValueError(f"{name} is true; {self.family} has no such biases")
        if self.sliding_window is not None and self.family not in WINDOWED:
            raise ValueError(f"sliding_window is set; {self.family} has none")
        if self.rope_scaling is not None and self.rope_theta <= 1:
            raise ValueError(f"rope_theta {self.rope_theta} must be above 1 to be scaled")
        return self

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape of every stored tensor, in Hugging Face's order.

        Linear weights are [out, in]. A tied head is not stored.
        """
        hidden, inner, dim = self.hidden_size, self.intermediate_size, self.head_dim
        q, kv = self.heads * dim, self.kv_heads * dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden)
        }
        for i in range(self.layers):
            at = f"model.layers.{i}."
            shapes[at + "input_layernorm.weight"] = (hidden,)
            for name, out in (("q", q), ("k", kv), ("v", kv)):
                shapes[at + f"self_attn.{name}_proj.weight"] = (out, hidden)
                if self.qkv_bias:
                    shapes[at + f"self_attn.{name}_proj.bias"] = (out,)
            if self.qk_norm:
                shapes[at + "self_attn.q_norm.weight"] = (dim,)
                shapes[at + "self_attn.k_norm.weight"] = (dim,)
            shapes[at + "self_attn.o_proj.weight"] = (hidden, q)
            if self.attention_bias:
                shapes[at + "self_attn.o_proj.bias"] = (hidden,)
            shapes[at + "post_attention_layernorm.weight"] = (hidden,)
            for name, out, width in (
                ("gate", inner, hidden),
                ("up", inner, hidden),
                ("down", hidden, inner),
            ):
                shapes[at + f"mlp.{name}_proj.weight"] = (out, width)
                if self.mlp_bias:
                    shapes[at + f"mlp.{name}_proj.bias"] = (out,)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def parameter_count(self) -> int:
        """Number of stored parameters (a tied head counts once)."""
        total = 0
        for shape in self.tensor_shapes().values():
            size = 1
            for length in shape:
                size *= length
            total += size
        return total

    def to_hf(
        self, *, dtype: str, bos_id: int | None, eos_id: int | None, pad_id: int | None
    ) -> dict[str, Any]:
        """The `config.json` that transformers 4 and 5 read."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling is not None:
            rope |= self.rope_scaling.model_dump(exclude_none=True)
        config: dict[str, Any] = {
            "architectures": [HF_CLASS[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,  # read by transformers 4
            "rope_parameters": rope,  # read by transformers 5
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tied_head,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "torch_dtype": dtype,
            "dtype": dtype,
            "bos_token_id": bos_id,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }
        if self.rope_scaling is not None:
            config["rope_scaling"] = rope  # read by transformers 4
        config |= {
            name: getattr(self, name)
            for name, families in BIASES.items()
            if self.family in families
        }
        if self.family in WINDOWED:
            config["sliding_window"] = self.sliding_window
        if self.family in ("qwen2", "qwen3"):
            config["use_sliding_window"] = self.sliding_window is not None
            if self.sliding_window is not None:
                config["max_window_layers"] = 0
                config["layer_types"] = ["sliding_attention"] * self.layers
        return config

    @classmethod
    def from_hf(cls, config: dict[str, Any], where: str = "config.json") -> "Architecture":
        """Read a Hugging Face config. Raises BadInput naming every field it cannot honour."""
        problems = list(unsupported(config, where))
        heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
        derived = 2  # if it cannot be derived, it is not the problem
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            derived = hidden // heads
        rope = rope_of(config)
        values = {
            **{ours: config[theirs] for ours, theirs in HF_NAMES.items() if theirs in config},
            "kv_heads": config.get("num_key_value_heads") or heads or 1,
            "head_dim": config.get("head_dim") or derived,
            "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            "tied_head": config.get("tie_word_embeddings", False),
            "attention_bias": config.get("attention_bias") or False,
            "mlp_bias": config.get("mlp_bias") or False,
        }
        if not problems:
            values |= {"rope_scaling": _scaling(rope), "sliding_window": window_of(config)}
            try:
                return cls.model_validate(values)
            except ValidationError as error:
                problems = [_in_their_words(text, where) for text in file_sentences(error, where)]
        raise BadInput(*problems)


def _scaling(rope: dict[str, Any]) -> dict[str, Any] | None:
    kind = rope_type_of(rope)
    if kind == "default":
        return None
    left_out = ("type", "rope_theta", "partial_rotary_factor")
    given = {key: value for key, value in rope.items() if key not in left_out and value is not None}
    return given | {"rope_type": kind}


def _in_their_words(sentence: str, where: str) -> str:
    """A finding, its field by the name that the file uses."""
    ours, colon, rest = sentence.removeprefix(f"{where}: ").partition(": ")
    section, dot, field = ours.partition(".")
    if section == "rope_scaling" and dot:  # pydantic puts the chosen kind into the path
        ours = f"{section}.{field.partition('.')[2]}"
    return f"{where}: {HF_NAMES.get(ours, ours)}{colon}{rest}"


def read_architecture(directory: Path) -> Architecture:
    """The architecture of a checkpoint or Hugging Face directory, from its `config.json`."""
    path = directory / "config.json"
    return Architecture.from_hf(read_object(path), str(path))
