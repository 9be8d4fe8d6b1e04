"""lm-eval's own ONNX models open the bundle as it lies there, and find what ours finds in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from tokenizers import Tokenizer

from artifacts.onnx_bundle import OnnxModel
from stages.evaluate.backends import log_sum_exp
from tests.bundles import write_tiny_bundle
from tests.tiny_models import tiny

PAIRS = [("Where does it", " lie?"), ("North of", " the river"), ("你好", "，世界")]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bundles")
    for operators in ("plain", "opset23", "microsoft"):
        write_tiny_bundle(place / operators, tiny(head_dim=16), operators=operators)
    return place


def wanted(bundle: Path) -> list[float]:
    """Log-likelihoods of the continuations in onnxruntime."""
    model = OnnxModel(bundle, threads=1)
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    found = []
    for context, text in PAIRS:
        begin, whole = tokenizer.encode(context).ids, tokenizer.encode(context + text).ids
        logits = model.logits(np.array([whole]))[0, len(begin) - 1 : -1]
        rest = whole[len(begin) :]
        found.append(float((logits[range(len(rest)), rest] - log_sum_exp(logits)).sum()))
    return found


@pytest.mark.parametrize("operators", ["plain", "opset23", "microsoft"])
@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-genai"])
def test_log_likelihoods_are_ours(bundles: Path, name: str, operators: str) -> None:
    bundle = bundles / operators / "bundle"
    lm: Any = get_model(name).create_from_arg_obj({"pretrained": str(bundle)}, {"batch_size": 1})
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
    found = [score for score, _ in lm.loglikelihood(asked)]
    assert found == pytest.approx(wanted(bundle), abs=1e-4)
