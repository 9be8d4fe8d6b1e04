"""Random tiny models as Hugging Face directories and as artifacts in a store, for tests."""

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from artifacts.adapter import Adapter
from artifacts.architecture import Architecture, Family
from artifacts.fields import DType
from artifacts.hf_model import write_configs, write_weights
from artifacts.manifest import (
    InputEntry,
    Kind,
    Manifest,
    content_digest,
    list_files,
    write_manifest,
)
from artifacts.store import artifact_path
from artifacts.tokenizer_files import write_object

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
VOCAB = len(SPECIAL) + len(BYTES)


def tiny(family: Family = "llama", **changes: Any) -> Architecture:
    """A two-layer architecture with a byte vocabulary."""
    sizes: dict[str, Any] = {
        "family": family,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16 if family == "qwen3" else 8,
        "intermediate_size": 48,
        "max_positions": 64,
        "rope_theta": 10000.0,
        "tied_head": True,
    }
    return Architecture(**(sizes | changes))


def random_weights(architecture: Architecture, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights with logits of order 1, sharp attention, norms off 1 and biases off 0."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in architecture.tensor_shapes().items():
        if name.endswith("norm.weight"):
            value = 1 + 0.3 * rng.standard_normal(shape)
        elif name.endswith("bias"):
            value = 0.5 * rng.standard_normal(shape)
        elif "embed_tokens" in name or "lm_head" in name:
            value = rng.standard_normal(shape) / np.sqrt(shape[1])
        else:
            value = 0.6 * rng.standard_normal(shape) / np.sqrt(shape[1])
        weights[name] = value.astype(np.float32)
    return weights


def random_adapter(a: Architecture, rank: int, targets: tuple[str, ...], seed: int) -> Adapter:
    """An adapter that moves logits by about as much as they are."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in a.tensor_shapes().items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in targets:
            out, width = shape
            tensors[module] = (
                rng.standard_normal((rank, width)).astype(np.float32) / 4,
                rng.standard_normal((out, rank)).astype(np.float32) / 4,
            )
    return Adapter(rank, 2.0 * rank, targets, tensors)


def merged(weights: dict[str, np.ndarray], with_: Adapter) -> dict[str, np.ndarray]:
    """The weights with an adapter added for good."""
    added = {f"{module}.weight": with_.delta(module) for module in with_.tensors}
    return {name: w + added[name] if name in added else w for name, w in weights.items()}


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer without merges, special tokens first."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL + BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"eos_token": SPECIAL[0], "bos_token": SPECIAL[0], "pad_token": SPECIAL[1]}
    write_object(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **special},
    )
    write_object(directory / "special_tokens_map.json", special)


def write_hf(
    directory: Path,
    architecture: Architecture,
    weights: dict[str, np.ndarray] | None = None,
    *,
    dtype: DType = "fp32",
    max_shard_bytes: int = 1 << 30,
) -> dict[str, np.ndarray]:
    """Write a whole Hugging Face directory; returns its weights as they were before the cast."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = random_weights(architecture) if weights is None else weights
    write_configs(directory, architecture, dtype=dtype, bos_id=None, eos_ids=[0], pad_id=1)
    write_weights(directory, architecture, weights.__getitem__, dtype, max_shard_bytes)
    write_tokenizer(directory)
    return weights


def as_artifact(
    store: Path,
    kind: Kind,
    fill: Any,
    *,
    identity: str = "1" * 64,
    inputs: dict[str, InputEntry] | None = None,
) -> Path:
    """A whole artifact: `fill(directory)` writes its files, the manifest follows."""
    directory = artifact_path(store, kind, identity)
    directory.mkdir(parents=True)
    fill(directory)
    files = list_files(directory)
    manifest = Manifest(
        kind=kind,
        stage="test",
        code_version=1,
        identity=identity,
        digest=content_digest(kind, files),
        files=files,
        inputs=inputs or {},
        sources=[],
        config={},
        seeds={},
        packages={},
        host={},
        started="2025-01-01T00:00:00+00:00",
        finished="2025-01-01T00:00:01+00:00",
        headline={},
    )
    write_manifest(directory, manifest)
    return directory
