"""Models and adapters: what convert, merge and export are given.

Their manifests are right: they were wrong before anybody wrote one.
"""

import json
import shutil

import numpy as np

from artifacts.manifest import MANIFEST
from artifacts.weights import SafetensorsFile, write_safetensors
from tests.bad_input.bench import (
    Bench,
    Spoil,
    config,
    content,
    fields,
    half,
    inputs,
    without,
)
from tests.bad_input.case import Case, at

WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def tensors(name: str, file: str, change: dict[str, np.ndarray | None]) -> Spoil:
    """Other tensors (None: none) in a weight file, whose artifact's manifest follows."""

    def spoil(bench: Bench) -> None:
        path = bench.artifact(name) / file
        read = SafetensorsFile(path)
        arrays = {each: np.array(read.read(each)) for each in read.names()} | change
        kept = {each: array for each, array in arrays.items() if array is not None}
        entries = [(each, array.shape, array.dtype) for each, array in kept.items()]
        write_safetensors(path, entries, kept.values(), {})
        bench.remade(bench.artifact(name))

    return spoil


def index(weight_map: object, **shards: bytes) -> Spoil:
    """The model's weights as an index and shards."""

    def spoil(bench: Bench) -> None:
        model = bench.artifact("model")
        (model / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))
        for name, data in shards.items():
            (model / f"{name}.safetensors").write_bytes(data)
        bench.remade(model)

    return spoil


CHECKPOINT = [
    at(
        "convert",
        "a checkpoint without a config",
        "config.json: cannot be read: No such file or directory",
        without("checkpoint", "config.json"),
    ),
    at(
        "convert",
        "a config that is no JSON",
        "config.json: is no JSON: ",
        content("checkpoint", "config.json", half),
    ),
    at(
        "convert",
        "a config nested without end",
        "config.json: is no JSON: it is nested too deeply",
        content("checkpoint", "config.json", b"[" * 5000),
    ),
    at(
        "convert",
        "a size missing",
        "config.json: num_hidden_layers: is required and missing",
        fields("checkpoint", "config.json", {"num_hidden_layers": ...}),
    ),
    at(
        "convert",
        "no heads",
        "config.json: num_attention_heads: is 0; input should be greater than 0",
        fields("checkpoint", "config.json", {"num_attention_heads": 0}),
    ),
    at(
        "convert",
        "heads that key/value heads do not divide",
        "config.json: kv_heads 3 does not divide heads 2",
        fields("checkpoint", "config.json", {"num_key_value_heads": 3}),
    ),
    at(
        "convert",
        "as many layers as would never end",
        "config.json: num_hidden_layers: is 4000000000; input should be less than or equal to",
        fields("checkpoint", "config.json", {"num_hidden_layers": 4_000_000_000}),
    ),
    at(
        "convert",
        "a token id that is none",
        "config.json: eos_token_id is 'end'; a token id or null would be right",
        fields("checkpoint", "config.json", {"eos_token_id": "end"}),
    ),
    at(
        "convert",
        "a token id beyond the vocabulary",
        "config.json: names token 999, the vocabulary has 260",
        fields("checkpoint", "config.json", {"pad_token_id": 999}),
    ),
    at(
        "convert",
        "weights of another width",
        "tensor model.embed_tokens.weight has shape [260, 16], the config says [260, 32]",
        fields("checkpoint", "config.json", {"hidden_size": 32}),
    ),
    at(
        "convert",
        "a tensor missing",
        "tensor model.norm.weight is missing",
        tensors("checkpoint", WEIGHTS, {"model.norm.weight": None}),
    ),
    at(
        "convert",
        "a tensor too many",
        "tensor model.layers.0.self_attn.rope is unknown to this architecture",
        tensors("checkpoint", WEIGHTS, {"model.layers.0.self_attn.rope": np.zeros(3, "f4")}),
    ),
    at(
        "convert",
        "whole numbers for weights",
        "tensor model.norm.weight is stored as int32; floating point would be right",
        tensors("checkpoint", WEIGHTS, {"model.norm.weight": np.ones(16, "i4")}),
    ),
    at(
        "convert",
        "a weight that is no number",
        "1111111111111111: tensor model.norm.weight has values that are not finite numbers",
        tensors("checkpoint", WEIGHTS, {"model.norm.weight": np.full(16, np.nan, "f4")}),
    ),
    at(
        "convert",
        "a weight that the asked type cannot hold",
        "dtype: is 'fp16'; tensor model.norm.weight reaches 1e+06, which only bf16 and fp32 can",
        config({"dtype": "fp16"}),
        tensors("checkpoint", WEIGHTS, {"model.norm.weight": np.full(16, 1e6, "f4")}),
    ),
    at(
        "convert",
        "a tied head that differs",
        "config.json says tie_word_embeddings, but lm_head.weight differs from model.embed_tokens",
        tensors("checkpoint", WEIGHTS, {"lm_head.weight": np.zeros((260, 16), "f4")}),
    ),
    at(
        "convert",
        "a checkpoint whose weights were cut short before it was made",
        f"{WEIGHTS}: is cut short, tensor ",
        content("checkpoint", WEIGHTS, lambda data: data[:-100]),
    ),
    at(
        "convert",
        "no tokenizer",
        "tokenizer.json: is missing",
        without("checkpoint", "tokenizer.json"),
    ),
    at(
        "convert",
        "a tokenizer that is none",
        "tokenizer.json: is no tokenizer: ",
        content("checkpoint", "tokenizer.json", b"{}"),
    ),
    at(
        "convert",
        "a tokenizer larger than the vocabulary",
        "tokenizer.json: has token ids up to 259, the model's vocabulary ends at 199",
        fields("checkpoint", "config.json", {"vocab_size": 200}),
        tensors("checkpoint", WEIGHTS, {EMBEDDING: np.zeros((200, 16), "f4")}),
    ),
    at(
        "convert",
        "a tokenizer whose end is another token",
        "tokenizer_config.json: eos_token is token 1, the model's is 0",
        fields("checkpoint", "tokenizer_config.json", {"eos_token": "<|pad|>"}),
    ),
    at(
        "convert",
        "an end that is no token",
        "tokenizer_config.json: eos_token is '</s>', tokenizer.json has no such token",
        fields("checkpoint", "tokenizer_config.json", {"eos_token": "</s>"}),
    ),
]


UNSUPPORTED = {
    "model_type": ("gpt2", "model_type is 'gpt2', supported is llama or mistral or qwen2 or qwen3"),
    "hidden_act": ("gelu", "hidden_act is 'gelu', supported is 'silu'"),
    "layer_types": (
        ["full_attention", "sliding_attention"],
        "layer_types is ['full_attention', 'sliding_attention'], supported is full_attention",
    ),
    "quantization_config": (
        {"bits": 4},
        "quantization_config is {'bits': 4}, supported is none",
    ),
    "pretraining_tp": (2, "pretraining_tp is 2, supported is 1"),
    "partial_rotary_factor": (0.5, "partial_rotary_factor is 0.5, supported is 1.0"),
    "rope_scaling": ("yarn", "rope_scaling is 'yarn', supported is an object or null"),
    "rope_parameters": (
        {"rope_type": "longrope", "factor": 4.0},
        "rope_type is 'longrope', supported is 'default', 'linear', 'llama3', 'yarn'",
    ),
}
"""Field of config.json -> a value that is not supported, and what is said."""


EXPORT = [
    at(
        "export",
        f"{field}: {json.dumps(value)}",
        says,
        fields("model", "config.json", {field: value}),
    )
    for field, (value, says) in UNSUPPORTED.items()
]
EXPORT += [
    at(
        "export",
        "all that is not supported at once",
        tuple(says for _, says in UNSUPPORTED.values()),
        fields("model", "config.json", {field: value for field, (value, _) in UNSUPPORTED.items()}),
    ),
    at(
        "export",
        "a field that nobody knows",
        "embedding_multiplier is 12.0, supported is null: what it changes is not known here",
        fields("model", "config.json", {"embedding_multiplier": 12.0}),
    ),
    at(
        "export",
        "another class than its architecture's",
        "architectures is ['LlamaForSequenceClassification'], supported is ['LlamaForCausalLM']",
        fields("model", "config.json", {"architectures": ["LlamaForSequenceClassification"]}),
    ),
    at(
        "export",
        "llama with a sliding window",
        "sliding_window is 4096, supported is null for llama",
        fields("model", "config.json", {"sliding_window": 4096}),
    ),
    at(
        "export",
        "a window in some layers only",
        "max_window_layers is 1, supported is 0 or num_hidden_layers",
        fields(
            "model",
            "config.json",
            {
                "model_type": "qwen2",
                "architectures": None,
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 1,
                "num_hidden_layers": 2,
            },
        ),
    ),
    at(
        "export",
        "biases that the files lack",
        "tensor model.layers.0.self_attn.o_proj.bias is missing",
        fields("model", "config.json", {"attention_bias": True}),
    ),
    at(
        "export",
        "stretched frequencies without their factors",
        (
            "config.json: rope_scaling.low_freq_factor: is required and missing",
            "config.json: rope_scaling.original_max_position_embeddings: is required and missing",
        ),
        fields(
            "model",
            "config.json",
            {"rope_parameters": None, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        ),
    ),
    at(
        "export",
        "two objects about the rotary embedding that differ",
        "config.json: factor differs between rope_scaling and rope_parameters",
        fields(
            "model",
            "config.json",
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
        ),
    ),
    at(
        "export",
        "a model without an end",
        "config.json names no eos_token_id; generation would never end",
        fields("model", "config.json", {"eos_token_id": None}),
    ),
    at(
        "export",
        "an index that names a shard outside",
        f"{WEIGHTS}.index.json: shard '../../../text.txt' lies outside the directory",
        index({EMBEDDING: "../../../text.txt"}),
    ),
    at(
        "export",
        "an index that names a shard that is not there",
        "model-00002-of-00002.safetensors: is missing, model.safetensors.index.json names it",
        index({EMBEDDING: WEIGHTS, "model.norm.weight": "model-00002-of-00002.safetensors"}),
    ),
    at(
        "export",
        "an index that is none",
        f"{WEIGHTS}.index.json: is no index with a weight_map",
        index([]),
    ),
    at(
        "export",
        "an index that does not list a tensor",
        f"{WEIGHTS}.index.json: does not list tensor ",
        index({EMBEDDING: WEIGHTS}),
    ),
]


EXPORT += [
    at("export", f"{key}: {json.dumps(value)}", says, config({key: value}))
    for key, value, says in (
        (
            "precision",
            "int3",
            "export.precision: is 'int3'; input should be 'fp32', 'fp16', 'int8'",
        ),
        (
            "operators",
            "opset17",
            "export.operators: is 'opset17'; input should be 'plain', 'opset23'",
        ),
        ("opset", 18, "export.opset: is no known key"),
        ("layout", "zip", "export.layout: is 'zip'; input should be 'flat' or 'onnx_folder'"),
        ("licence", 3, "export.licence: is 3; "),
        ("adapters", {"../poet": "a"}, "export.adapters.../poet"),
        ("adapters", {"poet": "poet"}, "export.adapters: poet/adapter_config.json is missing"),
    )
]
EXPORT += [
    at(
        "export",
        "microsoft's operators for heads that they do not take",
        "export.operators: is microsoft; head_dim is 8, which is no multiple of 16; plain or",
        config({"operators": "microsoft"}),
    ),
    at(
        "export",
        "int4 for rows that blocks do not divide",
        "export.precision: is int4; hidden_size is 16, which is no multiple of "
        "int4_block, 32; another precision would do",
        config({"precision": "int4"}),
    ),
    at(
        "export",
        "blocks without int4",
        "int4_block is 64 and precision is int8, which has no blocks; precision int4 would be",
        config({"precision": "int8", "int4_block": 64}),
    ),
    at(
        "export",
        "fp16 for weights that it cannot hold",
        f"export.precision: is fp16, which ends at 65504; {EMBEDDING} holds larger values; another",
        config({"precision": "fp16"}),
        tensors("model", WEIGHTS, {EMBEDDING: np.full((260, 16), 1e5, "f4")}),
    ),
    at(
        "export",
        "an adapter to be kept apart, of another rank than it says",
        "lora_A.weight has shape [2, 16], r is 4",
        config({"adapters": {"poet": "poet"}}),
        lambda bench: _wrong_rank(bench),
    ),
]
PROVE = [
    at("prove", f"{key}: {json.dumps(value)}", says, config({key: value}))
    for key, value, says in (
        ("longest", 1, "prove.longest: is 1; input should be greater than or equal to 2"),
        ("longest", 4096, "prove.longest: is 4096; the model's longest is 48"),
        ("threshold", 0, "prove.threshold: is 0; input should be greater than 0"),
        ("seed", -1, "prove.seed: is -1; input should be greater than or equal to 0"),
        ("engines", [], "prove.engines: names none; onnxruntime must be among them"),
        (
            "engines",
            ["reference"],
            "prove.engines: names reference; onnxruntime must be",
        ),
        ("engines", ["tensorrt"], "prove.engines.0: is 'tensorrt'; input should be 'onnxruntime'"),
        ("precision", "int8", "prove.precision: is no known key"),
    )
]
PROVE += [
    at(
        "prove",
        "a bundle of another model",
        "was made from the model with digest ",
        inputs(model="other"),
    ),
    at(
        "prove",
        "a bundle whose weights were cut short before it was made",
        "model.onnx_data: is cut short, tensor ",
        content("bundle", "model.onnx_data", half),
    ),
    at(
        "prove",
        "a bundle whose weights are not there",
        "model.onnx_data: is missing, model.onnx stores tensor ",
        without("bundle", "model.onnx_data"),
    ),
    at(
        "prove",
        "a bundle whose adapters are gone",
        "poet/adapter_config.json: is not the file that the bundle's adapter poet was made from",
        fields("bundle", MANIFEST, {"config": {"adapters": {"poet": "poet"}}}),
    ),
]


def _wrong_rank(bench: Bench) -> None:
    """An adapter outside the store whose config and tensors differ."""
    shutil.copytree(bench.artifact("adapter"), bench.root / "poet")
    path = bench.root / "poet" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"r": 4}))


def _merged_before(bench: Bench) -> None:
    adapter = json.loads((bench.artifact("adapter") / MANIFEST).read_bytes())
    hashes = {file["path"]: file["sha256"] for file in adapter["files"]}
    merge = {
        "base_digest": "b",
        "base_identity": "b",
        "adapter_digest": adapter["digest"],
        "adapter_identity": adapter["identity"],
        "adapter_tensors": hashes["adapter_model.safetensors"],
        "rank": 2,
        "alpha": 4,
        "scaling": 2,
        "targets": [],
        "modules": 7,
        "max_abs_change": 1,
        "changed_share": 1,
    }
    record = {"format": 1, "merges": [merge], "proof": {}}
    (bench.artifact("model") / "merge.json").write_text(json.dumps(record))
    bench.remade(bench.artifact("model"))


MERGE = [
    at(
        "merge",
        "an adapter for another base of the same shape",
        "belongs to the base with digest ",
        inputs(model="other"),
    ),
    at(
        "merge",
        "an adapter that says nothing of its base",
        "has no base.json, so nothing says which model it belongs to; it needs the base's digest",
        without("adapter", "base.json"),
    ),
    at(
        "merge",
        "an adapter without its scale",
        "adapter_config.json: lora_alpha is missing, supported is a number above 0",
        fields("adapter", "adapter_config.json", {"lora_alpha": ...}),
    ),
    at(
        "merge",
        "an adapter with settings that change the mathematics",
        (
            "adapter_config.json: use_dora is true, supported is null, false or empty",
            "adapter_config.json: bias is 'all', supported is 'none'",
            "adapter_config.json: init_lora_weights is 'pissa', supported is true, false or",
        ),
        fields(
            "adapter",
            "adapter_config.json",
            {"use_dora": True, "bias": "all", "init_lora_weights": "pissa"},
        ),
    ),
    at(
        "merge",
        "an adapter for modules that no model has",
        "adapter_config.json: target_modules is ['c_attn'], supported is a list of names out of",
        fields("adapter", "adapter_config.json", {"target_modules": ["c_attn"]}),
    ),
    at(
        "merge",
        "an adapter of another rank than it says",
        "lora_A.weight has shape [2, 16], r is 4",
        fields("adapter", "adapter_config.json", {"r": 4}),
    ),
    at(
        "merge",
        "half a pair",
        "model.layers.0.self_attn.q_proj has no lora_A",
        tensors("adapter", "adapter_model.safetensors", {Q: None}),
    ),
    at(
        "merge",
        "a tensor with a dot lost",
        "tensor base_model.model.modellayers.0.self_attn.q_proj.lora_A.weight has no known name",
        tensors(
            "adapter",
            "adapter_model.safetensors",
            {Q.replace("model.layers", "modellayers"): np.ones((2, 16), "f4")},
        ),
    ),
    at(
        "merge",
        "values that are no numbers",
        "lora_A.weight holds values that are not finite",
        tensors("adapter", "adapter_model.safetensors", {Q: np.full((2, 16), np.inf, "f4")}),
    ),
    at(
        "merge",
        "an adapter already merged",
        "is merged into this model already, says its merge.json; merge it into its base instead",
        lambda bench: _merged_before(bench),
    ),
    at(
        "merge",
        "a record of merges that is none",
        "merge.json: merges: input should be a valid array",
        content("model", "merge.json", b'{"format": 1, "merges": {}, "proof": {}}'),
    ),
]


CASES: list[Case] = [*CHECKPOINT, *MERGE, *EXPORT, *PROVE]
