"""Models and adapters from elsewhere, and training that starts from them."""

from tests.bad_input.bench import Bench, config, content, fields, file, inputs, without
from tests.bad_input.case import Case, at, typed

IMPORT = [
    typed(
        "import",
        "a directory that is not there",
        "import.directory: nowhere is no directory",
        "import nowhere",
    ),
    typed(
        "import",
        "a directory without weights",
        "mmlu: holds no model.safetensors and no model.safetensors.index.json",
        "import mmlu",
    ),
    typed(
        "import",
        "weights in a pickle",
        "pytorch_model.bin is a pickle and is never loaded",
        "import tokenizer",
        file("tokenizer/pytorch_model.bin", b"\x80\x04."),
    ),
    typed(
        "import",
        "a model without a tokenizer",
        "tokenizer.json: is missing, and so is tokenizer.model",
        "import {model}",
        without("model", "tokenizer.json"),
    ),
    typed(
        "import",
        "a tokenizer.model of another kind",
        "tokenizer.model: is no SentencePiece model: ",
        "import {model}",
        without("model", "tokenizer.json"),
        content("model", "tokenizer.model", b"IQ== 0\nIg== 1\n"),
    ),
    typed(
        "import",
        "a model whose config says what nobody knows",
        "logit_scale is 0.0625, supported is null: what it changes is not known here",
        "import {model}",
        fields("model", "config.json", {"logit_scale": 0.0625}),
    ),
    typed(
        "import",
        "an adapter without its base",
        "is an adapter; --base says which model of the store it belongs to",
        "import {adapter}",
    ),
    typed(
        "import",
        "a base for a model",
        "is no adapter, it has no adapter_config.json; leave out --base",
        "import {model} --base {other}",
    ),
    typed(
        "import",
        "an adapter for another base than it says",
        "belongs to the base with digest ",
        "import {adapter} --base {other} --store store",
    ),
    typed(
        "import",
        "an adapter that does not fit its base",
        "model.layers.0.self_attn.q_proj.lora_A has shape [2, 16], the base needs [2, 32]",
        "import {adapter} --base {other} --force --store store",
        lambda bench: _wider(bench),
    ),
]


def _wider(bench: Bench) -> None:
    from tests.tiny_models import tiny, write_hf

    directory = bench.artifact("other")
    write_hf(directory, tiny(layers=1, heads=2, kv_heads=1, hidden_size=32, intermediate_size=24))
    bench.remade(directory)


INITIAL = [
    at(
        "pretrain",
        "a start from a checkpoint that is not given",
        "inputs.initial: is missing; pretrain.model is 'initial'",
        config({"model": "initial"}),
    ),
    at(
        "pretrain",
        "a checkpoint to start from, and a shape of its own",
        "pretrain.model: states a shape, and a checkpoint to start from is given; 'initial' takes",
        inputs(initial="checkpoint"),
    ),
    at(
        "pretrain",
        "a checkpoint with another tokenizer than the corpus's",
        "corpus.tokenizer: is another than the model's; file: ",
        config({"model": "initial"}),
        inputs(initial="checkpoint"),
        fields("checkpoint", "tokenizer.json", {"model.vocab.!": 250, "model.vocab.ij": 5}),
    ),
    at(
        "pretrain",
        "windows longer than the checkpoint's positions",
        "pretrain.batch.sequence_length: is 49; the model has 48 positions",
        config({"model": "initial", "batch": {"sequence_length": 49, "global_size": 1}}),
        inputs(initial="checkpoint"),
    ),
]

CASES: list[Case] = [*IMPORT, *INITIAL]
