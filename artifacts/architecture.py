"""The Llama family as one description: Llama, Mistral, Qwen2 and Qwen3 differ in a few flags.

Converts from and to Hugging Face's `config.json`, and refuses by name what it does not support.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from artifacts.errors import BadInput
from artifacts.json_files import read_object
from artifacts.validation import file_sentences, shown

Family = Literal["llama", "mistral", "qwen2", "qwen3"]

HF_CLASS: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

HF_NAMES = {
    "family": "model_type",
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
    "tied_head": "tie_word_embeddings",
}
"""Our fields -> those of `config.json`."""

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

    @property
    def qkv_bias(self) -> bool:
        """Whether q, k and v projections have biases."""
        return self.family == "qwen2"

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
            shapes[at + "post_attention_layernorm.weight"] = (hidden,)
            shapes[at + "mlp.gate_proj.weight"] = (inner, hidden)
            shapes[at + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[at + "mlp.down_proj.weight"] = (hidden, inner)
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
        rope = {"rope_type": "default", "rope_theta": self.rope_theta}
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
        if self.family in ("llama", "qwen3"):
            config["attention_bias"] = False
        if self.family == "llama":
            config["mlp_bias"] = False
        if self.family in ("mistral", "qwen2", "qwen3"):
            config["sliding_window"] = None
        if self.family in ("qwen2", "qwen3"):
            config["use_sliding_window"] = False
        return config

    @classmethod
    def from_hf(cls, config: dict[str, Any], where: str = "config.json") -> "Architecture":
        """Read a Hugging Face config. Raises BadInput naming every field it cannot honour."""
        problems = _unsupported(config, where)
        heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
        derived = 2  # if it cannot be derived, it is not the problem
        if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
            derived = hidden // heads
        rope = _rope(config)
        values = {
            **{ours: config[theirs] for ours, theirs in HF_NAMES.items() if theirs in config},
            "kv_heads": config.get("num_key_value_heads") or heads or 1,
            "head_dim": config.get("head_dim") or derived,
            "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
            "tied_head": config.get("tie_word_embeddings", False),
        }
        if not problems:
            try:
                return cls.model_validate(values)
            except ValidationError as error:
                problems = [_in_their_words(text, where) for text in file_sentences(error, where)]
        raise BadInput(*problems)


def _unsupported(config: dict[str, Any], where: str) -> list[str]:
    """A sentence for every field that says something this family cannot do."""
    problems: list[str] = []

    def refuse(key: str, supported: str, of: dict[str, Any] = config) -> None:
        problems.append(f"{where}: {key} is {shown(of.get(key))}, supported is {supported}")

    family = config.get("model_type")
    if not isinstance(family, str) or family not in HF_CLASS:
        refuse("model_type", " or ".join(HF_CLASS))
    if config.get("hidden_act", "silu") != "silu":
        refuse("hidden_act", "'silu'")
    if config.get("attention_bias", False):
        refuse("attention_bias", "false (q/k/v biases are read for qwen2)")
    if config.get("mlp_bias", False):
        refuse("mlp_bias", "false")
    windowed = config.get("use_sliding_window", family == "mistral")
    window = config.get("sliding_window", 4096 if family == "mistral" else None)
    if windowed and window is not None:
        problems.append(f"{where}: sliding_window is {shown(window)}, supported is null")
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        refuse("layer_types", "full_attention in every layer")
    if config.get("quantization_config"):
        refuse("quantization_config", "none")
    if config.get("pretraining_tp", 1) != 1:
        refuse("pretraining_tp", "1")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key), dict | None):
            refuse(key, "an object or null")
    rope = _rope(config)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        problems.append(f"{where}: rope_type is {shown(rope_type)}, supported is 'default'")
    for part in (config, rope):  # where transformers 4 keeps it, and 5
        if part.get("partial_rotary_factor") not in (None, 1):
            refuse("partial_rotary_factor", "1.0", part)
    return problems


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    return rope if isinstance(rope, dict) else {}


def _in_their_words(sentence: str, where: str) -> str:
    """A finding, its field by the name that the file uses."""
    ours, colon, rest = sentence.removeprefix(f"{where}: ").partition(": ")
    return f"{where}: {HF_NAMES.get(ours, ours)}{colon}{rest}"


def read_architecture(directory: Path) -> Architecture:
    """The architecture of a checkpoint or Hugging Face directory, from its `config.json`."""
    path = directory / "config.json"
    return Architecture.from_hf(read_object(path), str(path))
