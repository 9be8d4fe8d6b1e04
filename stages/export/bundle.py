"""The bundle's files: graph, external data, configs and tokenizer, flat in one directory."""

import json
from pathlib import Path

import onnx

from artifacts.hf_model import HFModel, copy_configs
from artifacts.manifest import Manifest
from artifacts.onnx_bundle import GENAI_CONFIG, GRAPH
from artifacts.tokenizer_files import TokenizerFiles, write_object
from stages.export.decoder import build_decoder, stored_weights
from stages.export.external_data import write_external_data
from stages.export.genai_config import genai_config


def write_bundle(
    directory: Path,
    model: HFModel,
    tokenizer: TokenizerFiles,
    metadata: dict[str, str],
) -> onnx.ModelProto:
    """Write everything but the proof; returns the graph, whose weights stay on disk."""
    architecture = model.architecture
    weights = write_external_data(directory, model.weights, stored_weights(architecture))
    graph = build_decoder(architecture).model(architecture.family, weights, metadata)
    (directory / GRAPH).write_bytes(graph.SerializeToString(deterministic=True))
    write_object(directory / GENAI_CONFIG, genai_config(model))
    copy_configs(model, directory)
    tokenizer.copy_to(directory)
    return graph


def provenance(manifest: Manifest, model: HFModel, licence: str | None) -> dict[str, str]:
    """What the graph says of its origin, in ONNX's metadata."""
    architecture = json.dumps(model.architecture.model_dump(mode="json"), sort_keys=True)
    said = {
        "mindcycle.model.digest": manifest.digest,
        "mindcycle.model.identity": manifest.identity,
        "mindcycle.architecture": architecture,
    }
    return said | ({"licence": licence} if licence else {})
