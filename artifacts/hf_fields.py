"""What `config.json` may say: a field that is neither understood nor known to be silent is refused.

A field that changes the mathematics and is passed over gives a model that is wrong by a little and
says nothing. So the silent ones are listed, not the dangerous ones.
"""

from collections.abc import Callable, Iterator
from typing import Any

from artifacts.rope import ROPE_TYPES
from artifacts.validation import plain, shown

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
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "sliding_window": "sliding_window",
}
"""Fields of `Architecture` -> those of `config.json`."""

BIASES = {"attention_bias": ("llama", "qwen3"), "mlp_bias": ("llama",)}
"""Which families' models ask these fields."""
WINDOWED = ("mistral", "qwen2", "qwen3")

Refused = Callable[..., str]

_READ = {
    *HF_NAMES.values(),
    *("architectures", "hidden_act", "layer_types", "max_window_layers", "use_sliding_window"),
    *("rope_parameters", "rope_scaling", "partial_rotary_factor"),
    *("pretraining_tp", "quantization_config"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
_SILENT = {
    # where it comes from, and how a library handles it
    *("_name_or_path", "name_or_path", "transformers_version", "auto_map", "tokenizer_class"),
    *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "_attn_implementation"),
    *("_attn_implementation_autoset", "attn_implementation", "use_cache", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate"),
    *("keys_to_ignore_at_inference", "is_llama_config", "transformers.js_config"),
    *("unsloth_version", "unsloth_fixed", "tf_legacy_loss", "chunk_size_feed_forward"),
    # how it was drawn and trained
    *("initializer_range", "attention_dropout"),
    # tasks that are not text generation
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("task_specific_params", "sep_token_id", "decoder_start_token_id", "prefix"),
    # settings of generation, which once stood here
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
    *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
    *("length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens",),
}


def unsupported(config: dict[str, Any], where: str) -> Iterator[str]:
    """A sentence for every field that says something this family cannot do, or nobody knows."""

    def refused(key: str, supported: str, of: dict[str, Any] | None = None) -> str:
        of = config if of is None else of
        return f"{where}: {plain(key)} is {shown(of.get(key))}, supported is {supported}"

    family = config.get("model_type")
    if not isinstance(family, str) or family not in HF_CLASS:
        yield refused("model_type", " or ".join(HF_CLASS))
    else:
        yield from _family_problems(config, family, refused)
    if config.get("hidden_act", "silu") != "silu":
        yield refused("hidden_act", "'silu'")
    yield from _layer_problems(config, refused)
    if config.get("quantization_config"):
        yield refused("quantization_config", "none")
    if config.get("pretraining_tp", 1) != 1:
        yield refused("pretraining_tp", "1")
    yield from _rope_problems(config, where, refused)


def window_of(config: dict[str, Any]) -> Any:
    """The sliding window that every layer has, None without one; as transformers reads it."""
    family = config.get("model_type")
    if family == "mistral":
        return config.get("sliding_window", 4096)
    if family not in WINDOWED or not config.get("use_sliding_window", False):
        return None
    kinds = config.get("layer_types")
    first = config.get("max_window_layers", 28)
    windowed = kinds[0] == "sliding_attention" if kinds else first == 0
    return config.get("sliding_window", 4096) if windowed else None


def rope_of(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary embedding's object: transformers 4 calls it rope_scaling, 5 rope_parameters."""
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := config.get(key), dict) and rope:
            return rope
    return {}


def rope_type_of(rope: dict[str, Any]) -> Any:
    """How the frequencies are stretched; "default" if not at all."""
    return rope.get("rope_type", rope.get("type", "default"))


def _family_problems(config: dict[str, Any], family: str, refused: Refused) -> Iterator[str]:
    if config.get("architectures") not in (None, [HF_CLASS[family]]):
        yield refused("architectures", f"['{HF_CLASS[family]}'] for {family}")
    for key, families in BIASES.items():
        if config.get(key) and family not in families:
            yield refused(key, f"false for {family}")
    if config.get("sliding_window") and family not in WINDOWED:
        yield refused("sliding_window", f"null for {family}")
    for key, value in config.items():
        if key not in _READ | _SILENT and value not in (None, False, {}, [], ""):
            yield refused(key, "null: what it changes is not known here")


def _layer_problems(config: dict[str, Any], refused: Refused) -> Iterator[str]:
    """Layers of several kinds: the engine has one mask for all of them."""
    family, kinds = config.get("model_type"), config.get("layer_types") or []
    mixed = family in ("qwen2", "qwen3")
    known = ("full_attention", "sliding_attention") if mixed else ("full_attention",)
    if (
        not isinstance(kinds, list)
        or any(kind not in known for kind in kinds)
        or any(kind != kinds[0] for kind in kinds)
    ):
        yield refused("layer_types", " or ".join(known) + " in every layer")
    elif mixed and not kinds and config.get("use_sliding_window"):
        layers, first = config.get("num_hidden_layers"), config.get("max_window_layers", 28)
        if type(first) is not int or not isinstance(layers, int) or 0 < first < layers:
            yield refused("max_window_layers", "0 or num_hidden_layers, so that all are alike")


def _rope_problems(config: dict[str, Any], where: str, refused: Refused) -> Iterator[str]:
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key), dict | None):
            yield refused(key, "an object or null")
    rope = rope_of(config)
    found = rope_type_of(rope)
    if found not in ("default", *ROPE_TYPES):
        names = ", ".join(repr(name) for name in ("default", *ROPE_TYPES))
        yield f"{where}: rope_type is {shown(found)}, supported is {names}"
    if found == "default":
        plain_keys = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
        for key, value in rope.items():
            if key not in plain_keys and value is not None:
                yield refused(key, "null without a rope_type", rope)
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if isinstance(old, dict) and isinstance(new, dict) and old and new:
        differing = [key for key in old.keys() & new.keys() if old[key] != new[key]]
        if differing:
            yield (
                f"{where}: {plain(differing[0])} differs between rope_scaling and "
                "rope_parameters; one of the two would be right"
            )
    for part in (config, rope):  # where transformers 4 keeps it, and 5
        if part.get("partial_rotary_factor") not in (None, 1):
            yield refused("partial_rotary_factor", "1.0", part)
