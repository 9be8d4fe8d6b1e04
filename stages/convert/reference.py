"""The decoder written down once more, plainly: float64, numpy, one operation a line.

It follows Hugging Face's definition (rotate-half rotary embedding, grouped-query attention,
RMSNorm, SwiGLU) and shares no code with the MindSpore model or the ONNX graph, so that neither can
be wrong in the same way unnoticed.
"""

from collections.abc import Mapping

import numpy as np

from artifacts.architecture import Architecture

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

    causal_TT = np.tril(np.ones((length, length), bool))
    visible_BTT = causal_TT[None] & mask_BT[:, None, :]
    cos_BTD, sin_BTD = _rotation(architecture, positions_BT)

    x_BTC = np.asarray(weights["model.embed_tokens.weight"])[ids_BT].astype(np.float64)
    for i in range(architecture.layers):
        at = f"model.layers.{i}."
        h_BTC = _rms_norm(x_BTC, weight(at + "input_layernorm.weight"), architecture.rms_norm_eps)
        q_BTHD, k_BTHD, v_BTHD = (
            _project(architecture, weights, at + f"self_attn.{name}_proj", h_BTC, heads)
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
        x_BTC = x_BTC + a_BTC @ weight(at + "self_attn.o_proj.weight").T

        norm = weight(at + "post_attention_layernorm.weight")
        h_BTC = _rms_norm(x_BTC, norm, architecture.rms_norm_eps)
        gate_BTF = h_BTC @ weight(at + "mlp.gate_proj.weight").T
        up_BTF = h_BTC @ weight(at + "mlp.up_proj.weight").T
        inner_BTF = _silu(gate_BTF) * up_BTF
        x_BTC = x_BTC + inner_BTF @ weight(at + "mlp.down_proj.weight").T

    x_BTC = _rms_norm(x_BTC, weight("model.norm.weight"), architecture.rms_norm_eps)
    head = "model.embed_tokens.weight" if architecture.tied_head else "lm_head.weight"
    return x_BTC @ weight(head).T


def _project(
    architecture: Architecture,
    weights: Mapping[str, np.ndarray],
    name: str,
    h_BTC: np.ndarray,
    heads: int,
) -> np.ndarray:
    y = h_BTC @ np.asarray(weights[name + ".weight"]).astype(np.float64).T
    if architecture.qkv_bias:
        y = y + np.asarray(weights[name + ".bias"]).astype(np.float64)
    return y.reshape(*h_BTC.shape[:2], heads, architecture.head_dim)


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _rotation(
    architecture: Architecture, positions_BT: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, each [B, T, D]: the D/2 angles stand twice, side by side (rotate-half)."""
    dim = architecture.head_dim
    frequency = architecture.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angle = positions_BT[:, :, None].astype(np.float64) * frequency
    angle = np.concatenate([angle, angle], axis=-1)
    return np.cos(angle), np.sin(angle)


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
