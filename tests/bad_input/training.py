"""Text, tokens and instructions: what corpus, pretrain and finetune are given."""

from tests.bad_input.bench import (
    Spoil,
    config,
    content,
    fields,
    file,
    half,
    inputs,
    without,
)
from tests.bad_input.case import Case, at


def line(number: int, text: str) -> "Spoil":
    """Another text in a line of sft.jsonl."""

    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        lines[number - 1] = text
        return "\n".join(lines).encode()

    return file("sft.jsonl", change)


FILE_SOURCE = "sources.0.paths"
CORPUS = [
    at(
        "corpus",
        "a pattern that fits nothing",
        "'no/*.txt' fits no file",
        config({FILE_SOURCE: ["no/*.txt"]}),
    ),
    at(
        "corpus",
        "an empty file",
        "text.txt: is empty; remove it from sources",
        file("text.txt", ""),
    ),
    at(
        "corpus",
        "nothing but white space",
        "corpus.sources: hold no text, only white space",
        file("text.txt", " \n\n \n"),
    ),
    at(
        "corpus",
        "one document",
        "corpus.sources: hold one document only, which cannot be split into training and",
        file("text.txt", "Just this."),
    ),
    at(
        "corpus",
        "another encoding",
        "text.txt: is not UTF-8 at byte 4 (line 2, value 0xe9); convert it, for example with",
        file("text.txt", "abc\né".encode("latin-1")),
    ),
    at(
        "corpus",
        "a broken line of JSONL",
        "a.jsonl:2: is no JSON: ",
        config({FILE_SOURCE: ["a.jsonl"]}),
        file("a.jsonl", '{"text": "a"}\n{"text": \n{"text": "c"}\n'),
    ),
    at(
        "corpus",
        "a line of JSONL with half a character",
        "a.jsonl:2: holds half a character, a surrogate without its pair",
        config({FILE_SOURCE: ["a.jsonl"]}),
        file("a.jsonl", '{"text": "a"}\n{"text": "\\ud83d"}\n'),
    ),
    at(
        "corpus",
        "a line of JSONL without the field",
        "a.jsonl:2: has no field 'text', only body",
        config({FILE_SOURCE: ["a.jsonl"]}),
        file("a.jsonl", '{"text": "a"}\n{"body": "b"}\n'),
    ),
    at(
        "corpus",
        "a line of JSONL whose field is no text",
        "a.jsonl:1: field 'text' must hold text, not int",
        config({FILE_SOURCE: ["a.jsonl"]}),
        file("a.jsonl", '{"text": 3}\n'),
    ),
    at(
        "corpus",
        "a CSV row too short",
        "a.csv:3: has 1 columns, the header 2",
        config({FILE_SOURCE: ["a.csv"]}),
        file("a.csv", "id,text\n1,a\n2\n"),
    ),
    at(
        "corpus",
        "a CSV quote that is not closed",
        "a.csv:3: is no CSV: unexpected end of data",
        config({FILE_SOURCE: ["a.csv"]}),
        file("a.csv", 'id,text\n1,"a\n2,b\n'),
    ),
    at(
        "corpus",
        "a parquet file that is none",
        "a.parquet: is no readable parquet file: ",
        config({FILE_SOURCE: ["a.parquet"]}),
        file("a.parquet", "PAR1 no more"),
    ),
    at(
        "corpus",
        "one JSON value for a list of documents",
        "a.json: one JSON value is no list of documents; write one object a line and set format",
        config({FILE_SOURCE: ["a.json"]}),
        file("a.json", "[]"),
    ),
    at(
        "corpus",
        "a saved dataset that is none",
        "mmlu: cannot be read as a dataset: ",
        config({"sources.0": {"kind": "saved", "path": "mmlu"}}),
    ),
    at(
        "corpus",
        "a hub that cannot be reached",
        "org/none: the Hugging Face hub cannot be reached: ",
        config({"sources.0": {"kind": "hub", "name": "org/none"}, "allow_network": True}),
        code=1,
    ),
    at(
        "corpus",
        "a dataset that is a script",
        "script: cannot be read as a dataset: Dataset scripts are no longer supported",
        config({"sources.0": {"kind": "hub", "name": "script"}, "allow_network": True}),
        file("script/script.py", "open('canary', 'w')"),
    ),
    at(
        "corpus",
        "more vocabulary than the text gives",
        "corpus.tokenizer.vocab_size: is 5000; the text has too few different words for it",
        config({"tokenizer.vocab_size": 5000}),
    ),
    at(
        "corpus",
        "a tokenizer file that is not there",
        "corpus.tokenizer.file: none/tokenizer.json is no file",
        config({"tokenizer": {"file": "none/tokenizer.json"}}),
    ),
    at(
        "corpus",
        "a tokenizer file that is none",
        "tokenizer/tokenizer.json: is no tokenizer: ",
        config({"tokenizer": {"file": "tokenizer/tokenizer.json"}}),
        file("tokenizer/tokenizer.json", half),
    ),
    at(
        "corpus",
        "a tokenizer without an end",
        "corpus.tokenizer.eos_token: is missing; no tokenizer_config.json beside ",
        config({"tokenizer": {"file": "tokenizer/tokenizer.json"}}),
        file("tokenizer/tokenizer_config.json", "{}"),
        file("tokenizer/special_tokens_map.json", "{}"),
    ),
    at(
        "corpus",
        "an end that the tokenizer has not",
        "corpus.tokenizer.eos_token: is '</s>'; tokenizer/tokenizer.json has no such token",
        config({"tokenizer": {"file": "tokenizer/tokenizer.json", "eos_token": "</s>"}}),
    ),
]


PRETRAIN = [
    at(
        "pretrain",
        "a corpus shorter than a sequence",
        "pretrain.batch.sequence_length: is 512; the corpus has only 52 training tokens, at most",
        config({"batch.sequence_length": 512}),
    ),
    at(
        "pretrain",
        "a corpus that names a shard outside",
        "corpus.json: shard '../train-00000.bin' is no .bin file beside it",
        fields("corpus", "corpus.json", {"splits.train.shards": ["../train-00000.bin"]}),
    ),
    at(
        "pretrain",
        "a corpus of a later format",
        "corpus.json: format: is 2; input should be 1",
        fields("corpus", "corpus.json", {"format": 2}),
    ),
    at(
        "pretrain",
        "a shard with half a token",
        "train-00000.bin: 103 bytes are no whole number of uint16; cut short?",
        content("corpus", "train-00000.bin", lambda data: data[:-1]),
    ),
    at(
        "pretrain",
        "a shard shorter than is said",
        "train-00000.docs: a document does not end in token 0",
        content("corpus", "train-00000.bin", lambda data: data[:-2]),
    ),
    at(
        "pretrain",
        "no validation text",
        "corpus.json: has no split 'validation', only train",
        fields("corpus", "corpus.json", {"splits.validation": ...}),
    ),
    at(
        "pretrain",
        "a vocabulary smaller than the tokens",
        "train-00000.bin: holds token 5, corpus.json says that the vocabulary ends at 2",
        fields("corpus", "corpus.json", {"vocab_size": 3}),
    ),
    at(
        "pretrain",
        "a rolling checkpoint that is none",
        "nowhere/state.json: cannot be read: No such file",
        config({"resume_from": "nowhere"}),
    ),
    at(
        "pretrain",
        "a device that is not there",
        "device: is 'Ascend'; MindSpore finds no such device here, use auto",
        config({"device": "Ascend"}),
    ),
]


FINETUNE = [
    at(
        "finetune",
        "a broken line",
        "sft.jsonl:3: is no JSON: ",
        line(3, '{"instruction": "Where'),
    ),
    at(
        "finetune",
        "lines that are no instructions",
        (
            "sft.jsonl:2: output must be a text, as in {instruction, input, output}",
            "sft.jsonl:4: is no JSON object",
        ),
        line(2, '{"instruction": "Where is 2?"}'),
        line(4, "[]"),
    ),
    at("finetune", "an empty file", "sft.jsonl: holds no example", file("sft.jsonl", "\n")),
    at(
        "finetune",
        "another encoding",
        "sft.jsonl:1: is not UTF-8",
        file("sft.jsonl", '{"instruction": "é"}'.encode("latin-1")),
    ),
    at(
        "finetune",
        "a role that no template knows",
        "messages[0].role is 'tool', not system or user or assistant",
        config({"data.format": "messages", "template": "chatml"}),
        file("sft.jsonl", '{"messages": [{"role": "tool", "content": "a"}]}\n'),
    ),
    at(
        "finetune",
        "conversations under a template for questions",
        "finetune: template: is 'question'; messages need chatml",
        config({"data.format": "messages"}),
    ),
    at(
        "finetune",
        "no example that can be learned from",
        "finetune.data: none of 6 examples can be used: longer than max_length (6)",
        config({"max_length": 8}),
    ),
    at(
        "finetune",
        "examples longer than the model",
        "finetune.max_length: is 4096; the base has 48 positions",
        config({"max_length": 4096}),
    ),
    at(
        "finetune",
        "the world's questions without a corpus",
        "inputs.corpus: is missing; data: world needs the corpus of that world",
        config({"data": "world"}),
    ),
    at(
        "finetune",
        "the world's questions from a corpus without a world",
        "world/sft.jsonl: is missing; data: world needs a corpus with a world source",
        config({"data": "world"}),
        inputs(corpus="corpus"),
        without("corpus", "world/sft.jsonl"),
    ),
    at(
        "finetune",
        "a base whose tokenizer names no end",
        "tokenizer_config.json: eos_token is missing; without it the model cannot learn to stop",
        fields("model", "tokenizer_config.json", {"eos_token": ...}),
    ),
]


KINDS = [
    at(
        "finetune",
        "an adapter's settings where all weights are trained",
        "lora: is set, but method is 'full'; leave one of them out",
        config({"method": "full", "lora": {"rank": 4}}),
    ),
    at(
        "finetune",
        "the last layers without their number",
        "last_layers: goes with method last_layers, and only with it",
        config({"method": "last_layers"}),
    ),
    at(
        "finetune",
        "a method that makes a model, in the stage that makes adapters",
        "finetune.method: is 'full'; stage finetune-full makes models",
        config({"method": "full"}),
    ),
    at(
        "finetune",
        "a batch that does not divide over the processes",
        "batch.global_size 16 does not divide over parallel.data 3 processes",
        config({"parallel": {"data": 3}}),
    ),
    at(
        "finetune",
        "targets that the base has not",
        "finetune.lora.targets: is '.*experts.*'; the base has no such linear",
        config({"lora": {"targets": ".*experts.*"}}),
    ),
    at(
        "finetune",
        "targets by an expression that could run for ever",
        "is one that takes more than 1 s to try on a name; a regular expression, or a list",
        config({"lora": {"targets": "(.|..|...)+j[^o]"}}),
    ),
    at(
        "finetune",
        "sharegpt with an unknown speaker",
        "sft.jsonl:1: conversations[0].from is 'robot', not system or user or assistant or human",
        config({"data": {"files": ["sft.jsonl"], "format": "sharegpt"}, "template": "chatml"}),
        file("sft.jsonl", '{"conversations": [{"from": "robot", "value": "x"}]}\n'),
    ),
]


CASES: list[Case] = [*CORPUS, *PRETRAIN, *FINETUNE, *KINDS]
