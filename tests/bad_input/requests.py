"""A stage's request, and artifacts that are not what their manifests say."""

from artifacts.manifest import MANIFEST
from tests.bad_input.bench import (
    Bench,
    config,
    content,
    fields,
    file,
    flipped,
    half,
    inputs,
    request,
    tampered,
)
from tests.bad_input.case import Case, at

WEIGHTS = "model.safetensors"


def linked(bench: Bench) -> None:
    """A file of the model is a link to one outside, with the same bytes."""
    path = bench.artifact("model") / "config.json"
    (bench.root / "elsewhere.json").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(bench.root / "elsewhere.json")


def more_files(bench: Bench) -> None:
    (bench.artifact("model") / "more.txt").write_text("more")


REQUESTS = [
    Case(
        "any stage",
        "no request file",
        ("gate: usage: python -m stages.gate REQUEST.json",),
        lambda bench: bench.stage("gate")[:-1],
    ),
    Case(
        "any stage",
        "a request file that is not there",
        ("gate: none.json: cannot be read: No such file or directory",),
        lambda bench: [*bench.stage("gate")[:-1], "none.json"],
    ),
    Case(
        "any stage",
        "a request that is no JSON",
        ("gate: broken.json: is no JSON: Expecting value (column 29)",),
        lambda bench: [*bench.stage("gate")[:-1], "broken.json"],
        (file("broken.json", '{"stage": "gate", "config": '),),
    ),
    at(
        "gate",
        "another stage's request",
        "request.stage: is 'merge'; this is gate",
        request(stage="merge"),
    ),
    at(
        "gate",
        "an unknown key in the request",
        "request.storee: is no known key",
        request(storee="s"),
    ),
    at("gate", "no store in the request", "request.store: is null; ", request(store=None)),
    at(
        "gate",
        "a store that is a file",
        "store: {root}/text.txt is a file; a directory would be right",
        lambda bench: bench.request.update(store=str(bench.root / "text.txt")),
    ),
    at(
        "gate",
        "a store below a file",
        "store: {root}/text.txt/store cannot be created: Not a directory",
        lambda bench: bench.request.update(store=str(bench.root / "text.txt" / "store")),
    ),
    at(
        "gate",
        "a path with a NUL character",
        "request.store: is 'a\\x00b'; must not",
        request(store="a\0b"),
    ),
    at("merge", "an unknown setting", "merge.shards: is no known key", config({"shards": 2})),
    at(
        "prove",
        "a number without end",
        "prove.threshold: is inf; must be a finite number",
        config({"threshold": float("inf")}),
    ),
    at(
        "merge",
        "no adapter",
        "inputs.adapter: is missing, merge needs an artifact of kind adapter",
        inputs(adapter=None),
    ),
    at(
        "merge",
        "an input that it does not take",
        "inputs.corpus: merge takes no such input, only model, adapter",
        inputs(corpus="corpus"),
    ),
    at(
        "export",
        "a checkpoint for a model",
        "store/checkpoint/1111111111111111 is of kind checkpoint, export needs hf-model",
        inputs(model="checkpoint"),
    ),
    at(
        "merge",
        "a directory that is no artifact",
        "inputs.model: {root}/mmlu: is no artifact, it has no manifest.json",
        inputs(model="mmlu"),
    ),
]


ARTIFACTS = [
    at(
        "convert",
        "a weight file with one bit flipped",
        f"{WEIGHTS}: has changed, its sha256 is not the manifest's",
        tampered("checkpoint", WEIGHTS, flipped),
    ),
    at(
        "convert",
        "a weight file cut short",
        f"{WEIGHTS}: has ",
        tampered("checkpoint", WEIGHTS, half),
    ),
    at(
        "convert",
        "a weight file gone",
        f"{WEIGHTS}: is missing",
        tampered("checkpoint", WEIGHTS, None),
    ),
    at("export", "a file too many", "more.txt: is not in the manifest", more_files),
    at(
        "export", "a link to a file outside", "config.json: leaves the artifact's directory", linked
    ),
    at(
        "export",
        "a manifest that names a file outside",
        "manifest.json: files.0.path: is '../../../text.txt'; must be a relative path inside",
        fields("model", MANIFEST, {"files.0.path": "../../../text.txt"}),
    ),
    at(
        "export",
        "a manifest cut short",
        "manifest.json: is no JSON: ",
        content("model", MANIFEST, half),
    ),
    at(
        "export",
        "a manifest of an unknown kind",
        "manifest.json: kind: is 'weights'; input should be 'corpus', 'checkpoint', 'hf-model'",
        fields("model", MANIFEST, {"kind": "weights"}),
    ),
    at(
        "export",
        "a manifest of a later format",
        "manifest.json: format: is 2; input should be 1",
        fields("model", MANIFEST, {"format": 2}),
    ),
    at(
        "export",
        "a manifest whose digest is another's",
        "manifest.json: its digest does not follow from its files",
        fields("model", MANIFEST, {"digest": "0" * 64}),
    ),
    at(
        "export",
        "an identity that leads outside",
        "manifest.json: identity: is '../../../../../etc'; string should match pattern",
        fields("model", MANIFEST, {"identity": "../../../../../etc"}),
    ),
]


CASES: list[Case] = [*REQUESTS, *ARTIFACTS]
