"""Gradients of the summed loss in float64, written down apart from the engine.

Llama and Qwen3 shapes without biases. Suffixes: B sequences, T tokens, D features, H query heads,
K key/value heads, E features of a head, V vocabulary.
"""

from collections.abc import Mapping

import numpy as np

from artifacts.architecture import Architecture

Tensors = dict[str, np.ndarray]


def exact_gradients(
    shape: Architecture,
    tensors: Mapping[str, np.ndarray],
    ids_BT: np.ndarray,
    labels_BT: np.ndarray,
) -> Tensors:
    """By Hugging Face name, [out, in]; labels below 0 count nothing."""
    return _Exact(shape, tensors, ids_BT.shape[1]).gradients(ids_BT, labels_BT)


class _Exact:
    def __init__(self, shape: Architecture, tensors: Mapping[str, np.ndarray], length: int):
        self.shape = shape
        self.w = {name: value.astype(np.float64) for name, value in tensors.items()}
        self.d = {name: np.zeros(value.shape) for name, value in tensors.items()}
        even = np.arange(0, shape.head_dim, 2)
        angle = np.arange(length)[:, None] / shape.rope_theta ** (even / shape.head_dim)
        self.cos, self.sin = (np.tile(f(angle), 2) for f in (np.cos, np.sin))

    def gradients(self, ids: np.ndarray, labels: np.ndarray) -> Tensors:
        head = "model.embed_tokens" if self.shape.tied_head else "lm_head"
        x = self.w["model.embed_tokens.weight"][ids]
        layers = []
        for i in range(self.shape.layers):
            x, held = self.layer(f"model.layers.{i}", x)
            layers.append(held)
        y, norm = self.norm("model.norm", x)
        logits = self.linear(head, y)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        d_logits = (p - (np.arange(p.shape[-1]) == labels[..., None])) * (labels >= 0)[..., None]
        dx = self.norm_back("model.norm", norm, self.linear_back(head, y, d_logits))
        for i in reversed(range(self.shape.layers)):
            dx = self.layer_back(f"model.layers.{i}", layers[i], dx)
        np.add.at(self.d["model.embed_tokens.weight"], ids, dx)
        return self.d

    def layer(self, at: str, x: np.ndarray) -> tuple[np.ndarray, tuple]:
        s, a, m = self.shape, f"{at}.self_attn", f"{at}.mlp"
        y, norm = self.norm(f"{at}.input_layernorm", x)
        q, k, v = (
            self.split(self.linear(f"{a}.{n}_proj", y), heads)
            for n, heads in (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads))
        )
        norms = None
        if s.qk_norm:
            (q, q_norm), (k, k_norm) = self.norm(f"{a}.q_norm", q), self.norm(f"{a}.k_norm", k)
            norms = (q_norm, k_norm)
        q, k = self.turn(q, self.sin), self.turn(k, self.sin)
        k, v = (np.repeat(each, s.heads // s.kv_heads, axis=1) for each in (k, v))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(s.head_dim)
        scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = self.join(p @ v)
        z = x + self.linear(f"{a}.o_proj", o)
        u, norm2 = self.norm(f"{at}.post_attention_layernorm", z)
        gate, up = self.linear(f"{m}.gate_proj", u), self.linear(f"{m}.up_proj", u)
        sigmoid = 1 / (1 + np.exp(-gate))
        inner = gate * sigmoid * up
        held = (y, norm, norms, q, k, v, p, o, u, norm2, gate, up, sigmoid, inner)
        return z + self.linear(f"{m}.down_proj", inner), held

    def layer_back(self, at: str, held: tuple, dx: np.ndarray) -> np.ndarray:
        s, a, m = self.shape, f"{at}.self_attn", f"{at}.mlp"
        y, norm, norms, q, k, v, p, o, u, norm2, gate, up, sigmoid, inner = held
        d_inner = self.linear_back(f"{m}.down_proj", inner, dx)
        d_gate = d_inner * up * sigmoid * (1 + gate * (1 - sigmoid))
        du = self.linear_back(f"{m}.gate_proj", u, d_gate)
        du += self.linear_back(f"{m}.up_proj", u, d_inner * gate * sigmoid)
        dz = dx + self.norm_back(f"{at}.post_attention_layernorm", norm2, du)
        do = self.split(self.linear_back(f"{a}.o_proj", o, dz), s.heads)
        dp = do @ v.swapaxes(2, 3)
        ds = (dp - (dp * p).sum(-1, keepdims=True)) * p / np.sqrt(s.head_dim)
        dq, dk, dv = ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ do
        dk, dv = (
            each.reshape(len(each), s.kv_heads, -1, *each.shape[2:]).sum(2) for each in (dk, dv)
        )
        dq, dk = self.turn(dq, -self.sin), self.turn(dk, -self.sin)
        if norms is not None:
            dq = self.norm_back(f"{a}.q_norm", norms[0], dq)
            dk = self.norm_back(f"{a}.k_norm", norms[1], dk)
        dy = np.zeros_like(y)
        for n, d in (("q", dq), ("k", dk), ("v", dv)):
            dy += self.linear_back(f"{a}.{n}_proj", y, self.join(d))
        return dz + self.norm_back(f"{at}.input_layernorm", norm, dy)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T

    def linear_back(self, name: str, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        self.d[f"{name}.weight"] += np.einsum("bto,bti->oi", dy, x)
        return dy @ self.w[f"{name}.weight"]

    def norm(self, name: str, x: np.ndarray) -> tuple[np.ndarray, tuple]:
        factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.shape.rms_norm_eps)
        return x * factor * self.w[f"{name}.weight"], (x * factor, factor)

    def norm_back(self, name: str, held: tuple, dy: np.ndarray) -> np.ndarray:
        unit, factor = held
        self.d[f"{name}.weight"] += (dy * unit).sum(tuple(range(dy.ndim - 1)))
        d = dy * self.w[f"{name}.weight"]
        return (d - unit * (d * unit).mean(-1, keepdims=True)) * factor

    def turn(self, x: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """The rotation of x [B, H, T, E]; with -sin its transpose."""
        first, second = np.split(x, 2, axis=-1)
        return x * self.cos + np.concatenate([-second, first], -1) * sin

    def split(self, x: np.ndarray, heads: int) -> np.ndarray:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def join(self, x: np.ndarray) -> np.ndarray:
        x = x.swapaxes(1, 2)
        return x.reshape(*x.shape[:2], -1)
