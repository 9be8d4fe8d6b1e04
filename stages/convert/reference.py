"""The decoder written down once more, plainly: float64, numpy, one operation a line.

It follows Hugging Face's definition (rotate-half rotary embedding, grouped-query attention,
RMSNorm, SwiGLU) and shares no code with the MindSpore model or the ONNX graph, so that neither can
be wrong in the same way unnoticed.
"""

import math
from collections.abc import Mapping

import numpy as np

from artifacts.architecture import Architecture
from artifacts.rope import LinearScaling, Llama3Scaling, YarnScaling

MASKED = float(np.finfo(np.float64).min)
"""Added to a masked score. Finite, so that a row that sees nothing is uniform, not NaN."""


def reference_logits(
    architecture: Architecture,
    weights: Mapping[str, np.ndarray],
    ids_BT: np.ndarray,
    mask_BT: np.ndarray | None = None,
    positions_BT: np.ndarray | None = None,
) -> np.ndarray:
    """Logits as float64 [B, T, V].

    `weights` maps Hugging Face names to arrays of any float type, linears [out, in]. `mask_BT` is
    true where a token counts; a masked token is seen by nobody, and its own row of logits means
    nothing. Positions count the tokens that are not masked, from 0, unless given.
    """
    ids_BT = np.asarray(ids_BT)
    batch, length = ids_BT.shape
    mask_BT = np.ones((batch, length), bool) if mask_BT is None else np.asarray(mask_BT, bool)
    if positions_BT is None:
        positions_BT = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0)

    def weight(name: str) -> np.ndarray:
        return np.asarray(weights[name]).astype(np.float64)

    biased = {name for name in architecture.tensor_shapes() if name.endswith(".bias")}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        y = x @ weight(name + ".weight").T
        return y + weight(name + ".bias") if name + ".bias" in biased else y

    causal_TT = np.tril(np.ones((length, length), bool))
    if architecture.sliding_window is not None:
        age_TT = np.arange(length)[:, None] - np.arange(length)[None, :]
        causal_TT &= age_TT < architecture.sliding_window
    visible_BTT = causal_TT[None] & mask_BT[:, None, :]
    cos_BTD, sin_BTD = _rotation(architecture, positions_BT)

    x_BTC = np.asarray(weights["model.embed_tokens.weight"])[ids_BT].astype(np.float64)
    for i in range(architecture.layers):
        at = f"model.layers.{i}."
        h_BTC = _rms_norm(x_BTC, weight(at + "input_layernorm.weight"), architecture.rms_norm_eps)
        q_BTHD, k_BTHD, v_BTHD = (
            linear(at + f"self_attn.{name}_proj", h_BTC).reshape(batch, length, heads, -1)
            for name, heads in (
                ("q", architecture.heads),
                ("k", architecture.kv_heads),
                ("v", architecture.kv_heads),
            )
        )
        if architecture.qk_norm:
            eps = architecture.rms_norm_eps
            q_BTHD = _rms_norm(q_BTHD, weight(at + "self_attn.q_norm.weight"), eps)
            k_BTHD = _rms_norm(k_BTHD, weight(at + "self_attn.k_norm.weight"), eps)
        q_BTHD = _rotate(q_BTHD, cos_BTD, sin_BTD)
        k_BTHD = _rotate(k_BTHD, cos_BTD, sin_BTD)
        a_BTC = _attend(q_BTHD, k_BTHD, v_BTHD, visible_BTT)
        x_BTC = x_BTC + linear(at + "self_attn.o_proj", a_BTC)

        norm = weight(at + "post_attention_layernorm.weight")
        h_BTC = _rms_norm(x_BTC, norm, architecture.rms_norm_eps)
        inner_BTF = _silu(linear(at + "mlp.gate_proj", h_BTC)) * linear(at + "mlp.up_proj", h_BTC)
        x_BTC = x_BTC + linear(at + "mlp.down_proj", inner_BTF)

    x_BTC = _rms_norm(x_BTC, weight("model.norm.weight"), architecture.rms_norm_eps)
    head = "model.embed_tokens.weight" if architecture.tied_head else "lm_head.weight"
    return x_BTC @ weight(head).T


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _rotation(
    architecture: Architecture, positions_BT: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, each [B, T, D]: the D/2 angles stand twice, side by side (rotate-half)."""
    dim = architecture.head_dim
    found = [_frequency(architecture, i) for i in range(dim // 2)]
    angle = positions_BT[:, :, None].astype(np.float64) * np.array(found)
    angle = np.concatenate([angle, angle], axis=-1)
    sharpness = 1.0
    if isinstance(architecture.rope_scaling, YarnScaling):
        sharpness = architecture.rope_scaling.sharpness
    return np.cos(angle) * sharpness, np.sin(angle) * sharpness


def _frequency(architecture: Architecture, i: int) -> float:
    """Radians that feature pair `i` turns at each position, stretched as the model says."""
    scaling, theta, dim = architecture.rope_scaling, architecture.rope_theta, architecture.head_dim
    plain: float = theta ** (-2 * i / dim)
    if scaling is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    if isinstance(scaling, Llama3Scaling):
        if turns > scaling.high_freq_factor:
            return plain
        if turns < scaling.low_freq_factor:
            return plain / scaling.factor
        width = scaling.high_freq_factor - scaling.low_freq_factor
        kept = (turns - scaling.low_freq_factor) / width
        return (1 - kept) * plain / scaling.factor + kept * plain
    # The pair whose wave turns n times is the solution of length * theta^(-2i/dim) = 2 pi n.
    begin, end = (
        dim / 2 * math.log(scaling.original_max_position_embeddings / (2 * math.pi * n), theta)
        for n in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, dim - 1)
    stretched = min(max((i - begin) / ((end - begin) or 0.001), 0), 1)
    return stretched * plain / scaling.factor + (1 - stretched) * plain


def _rotate(x_BTHD: np.ndarray, cos_BTD: np.ndarray, sin_BTD: np.ndarray) -> np.ndarray:
    first, second = np.split(x_BTHD, 2, axis=-1)
    turned = np.concatenate([-second, first], axis=-1)
    return x_BTHD * cos_BTD[:, :, None, :] + turned * sin_BTD[:, :, None, :]


def _attend(
    q_BTHD: np.ndarray, k_BTHD: np.ndarray, v_BTHD: np.ndarray, visible_BTT: np.ndarray
) -> np.ndarray:
    """Attention, heads joined again: [B, T, H*D]. Query head h reads key/value head h // group."""
    batch, length, heads, dim = q_BTHD.shape
    group = heads // k_BTHD.shape[2]
    k_BTHD, v_BTHD = (np.repeat(each, group, axis=2) for each in (k_BTHD, v_BTHD))
    score_BHTT = np.einsum("bqhd,bkhd->bhqk", q_BTHD, k_BTHD) / np.sqrt(dim)
    score_BHTT = np.where(visible_BTT[:, None], score_BHTT, MASKED)
    score_BHTT = np.exp(score_BHTT - score_BHTT.max(axis=-1, keepdims=True))
    p_BHTT = score_BHTT / score_BHTT.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", p_BHTT, v_BTHD).reshape(batch, length, heads * dim)


def _silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp of a large number is inf, and x / inf is the right 0
        return x / (1.0 + np.exp(-x))
