"""The kinds of graph that a bundle can hold, as its metadata names them. Light to import."""

from typing import Literal

Operators = Literal["plain", "opset23", "microsoft"]
"""What attention, norms and rotation are written in."""
Precision = Literal["fp32", "fp16", "int8", "int4"]
"""How weights are stored; activations are float32."""
