"""`genai_config.json`: how onnxruntime-genai (and our own reader) is to run the graph."""

from typing import Any

from artifacts.hf_model import HFModel
from artifacts.onnx_bundle import GRAPH, IDS, LOGITS, MASK, POSITIONS


def genai_config(model: HFModel, shared_cache: bool = False, graph: str = GRAPH) -> dict[str, Any]:
    """The config for a model; greedy search unless the caller of genai says otherwise.

    `graph` is the graph's path in the bundle. `shared_cache`: past and present are one buffer of
    the longest length.
    """
    a = model.architecture
    eos = model.eos_ids or [0]
    return {
        "model": {
            # genai wants numbers here; a model without a token of that role never meets it.
            "bos_token_id": eos[0] if model.bos_id is None else model.bos_id,
            "context_length": a.max_positions,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": graph,
                "head_size": a.head_dim,
                "hidden_size": a.hidden_size,
                "inputs": {
                    "input_ids": IDS,
                    "attention_mask": MASK,
                    "position_ids": POSITIONS,
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": LOGITS,
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": a.heads,
                "num_hidden_layers": a.layers,
                "num_key_value_heads": a.kv_heads,
            },
            "eos_token_id": eos[0] if len(eos) == 1 else eos,
            "pad_token_id": eos[0] if model.pad_id is None else model.pad_id,
            "type": a.family,
            "vocab_size": a.vocab_size,
        },
        "search": {
            "diversity_penalty": 0.0,
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": a.max_positions,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            # Most operators append to the cache; only com.microsoft's attention writes into it.
            "past_present_share_buffer": shared_cache,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 1,
            "top_p": 1.0,
        },
    }
