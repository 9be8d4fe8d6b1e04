"""The kinds of graph that can be exported, and how exact each must be. Light to import."""

from typing import Literal

from artifacts.onnx_kinds import Operators, Precision

Layout = Literal["flat", "onnx_folder"]
Int4Block = Literal[32, 64, 128]
EngineName = Literal["onnxruntime", "reference", "openvino"]
"""reference: the evaluator that comes with ONNX itself, in Python."""

MAX_ERROR: dict[Precision, float] = {"fp32": 1e-5, "fp16": 2e-2, "int8": 0.5, "int4": 4.0}
"""Largest error of a logit, in units of the logits' root mean square."""
MAX_MEAN_KL: dict[Precision, float] = {"int8": 0.02, "int4": 0.3}
"""Largest mean divergence from the reference, nats. Rounded weights move single logits far; a wrong
graph moves all of them: two unrelated models with logits of order 1 are 1 apart."""


def uses_microsoft(operators: Operators, precision: Precision) -> bool:
    """Whether a graph holds operators that only onnxruntime defines."""
    return operators == "microsoft" or precision == "int4"
