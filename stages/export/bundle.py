"""The bundle's files: graph, external data, configs and tokenizer, flat in one directory."""

import json
from collections.abc import Mapping
from pathlib import Path

import onnx

from artifacts.adapter import Adapter
from artifacts.hf_model import CONFIG, HFModel, copy_configs
from artifacts.json_files import read_object, write_object
from artifacts.manifest import Manifest
from artifacts.onnx_bundle import FOLDER, GENAI_CONFIG, GRAPH, OPERATORS, PRECISION, adapter_file
from artifacts.onnx_kinds import Operators, Precision
from artifacts.tokenizer_files import TokenizerFiles
from stages.export.adapters import targets_of, write_onnx_adapter
from stages.export.attention import blocks_of
from stages.export.decoder import build_decoder
from stages.export.external_data import write_external_data
from stages.export.genai_config import genai_config
from stages.export.kinds import Int4Block, Layout
from stages.export.linears import linears_of


def write_bundle(
    directory: Path,
    model: HFModel,
    tokenizer: TokenizerFiles,
    metadata: dict[str, str],
    operators: Operators = "plain",
    precision: Precision = "fp32",
    adapters: Mapping[str, Adapter] = {},
    layout: Layout = "flat",
    int4_block: Int4Block = 32,
) -> onnx.ModelProto:
    """Write everything but the proof; returns the graph, whose weights stay on disk.

    Raises BadInput if the model's shape or weights do not allow the precision.
    """
    architecture = model.architecture
    linears = linears_of(precision, architecture, int4_block)
    blocks = blocks_of(operators, architecture)
    stored = (
        each for name in model.weights for each in linears.store(name, model.weights.raw(name))
    )
    home = directory / FOLDER if layout == "onnx_folder" else directory
    home.mkdir(exist_ok=True)
    weights = write_external_data(home, stored)
    targets = targets_of(adapters.values())
    decoder = build_decoder(architecture, blocks, linears, targets)
    graph = decoder.model(architecture.family, weights, metadata, blocks.opset)
    (home / GRAPH).write_bytes(graph.SerializeToString(deterministic=True))
    for name, adapter in adapters.items():
        adapter_file(directory, name).parent.mkdir(exist_ok=True)
        write_onnx_adapter(adapter_file(directory, name), adapter, architecture, targets)
    path = (home / GRAPH).relative_to(directory).as_posix()
    write_object(
        directory / GENAI_CONFIG,
        genai_config(model, shared_cache=operators == "microsoft", graph=path),
    )
    copy_configs(model, directory)
    if layout == "onnx_folder":
        _tell_transformers_js(directory / CONFIG)
    tokenizer.copy_to(directory)
    return graph


def _tell_transformers_js(config: Path) -> None:
    """It looks for `onnx/model.onnx` under the name fp32, and has to be told of the data file."""
    said = {"dtype": "fp32", "use_external_data_format": {GRAPH: 1}}
    write_object(config, read_object(config) | {"transformers.js_config": said})


def provenance(
    manifest: Manifest,
    model: HFModel,
    licence: str | None,
    operators: Operators = "plain",
    precision: Precision = "fp32",
) -> dict[str, str]:
    """What the graph says of its origin and kind, in ONNX's metadata."""
    architecture = json.dumps(model.architecture.model_dump(mode="json"), sort_keys=True)
    said = {
        "mindcycle.model.digest": manifest.digest,
        "mindcycle.model.identity": manifest.identity,
        "mindcycle.architecture": architecture,
    }
    if operators != "plain":
        said[OPERATORS] = operators
    if precision != "fp32":
        said[PRECISION] = precision
    return said | ({"licence": licence} if licence else {})
