"""Base against tuned model on examples that were not learned from: loss, and exact match.

Greedy generation gives an answer word for word exactly if the likeliest token is right at every
place of it, all before being right; so one pass over prompt and answer tells both figures.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.json_files import write_object
from stages.engine.inference import InferenceModel
from stages.finetune.dataset import NO_LOSS, Encoded

AT_ONCE = 16
"""Examples in one pass."""


@dataclass(frozen=True)
class Found:
    """What one model makes of the examples, in their order."""

    losses: np.ndarray
    """Sum over each example's learned tokens, nats."""
    tokens: np.ndarray
    """Number of learned tokens of each."""
    exact: np.ndarray
    """Whether greedy generation gives every learned token."""

    def figures(self) -> dict[str, Any]:
        """Mean loss a token, and share of exact answers with its standard error."""
        share = float(self.exact.mean())
        return {
            "loss": float(self.losses.sum() / self.tokens.sum()),
            "exact_match": share,
            "exact_match_error": float(np.sqrt(share * (1 - share) / len(self.exact))),
        }


def look(model: InferenceModel, examples: list[Encoded]) -> Found:
    """Losses and exact matches of a model."""
    losses, tokens, exact = [], [], []
    width = max(len(example.ids) for example in examples)
    for begin in range(0, len(examples), AT_ONCE):
        part = examples[begin : begin + AT_ONCE]
        ids = np.zeros((len(part), width), np.int32)
        learned = np.zeros((len(part), width - 1), bool)
        for row, example in enumerate(part):
            ids[row, : len(example.ids)] = example.ids
            learned[row, : len(example.ids) - 1] = example.labels[1:] != NO_LOSS
        lengths = np.array([len(example.ids) for example in part])
        logprobs, greedy = model.score(ids, lengths)
        losses.append(-np.where(learned, logprobs.astype(np.float64), 0).sum(1))
        tokens.append(learned.sum(1))
        exact.append((greedy | ~learned).all(1))
    return Found(np.concatenate(losses), np.concatenate(tokens), np.concatenate(exact))


def write_comparison(directory: Path, base: Found, tuned: Found) -> dict[str, Any]:
    """Write `held_out.json` and `logs/held_out.png`; gives the figures."""
    figures = {
        "format": 1,
        "examples": len(base.exact),
        "tokens": int(base.tokens.sum()),
        "base": base.figures(),
        "tuned": tuned.figures(),
        "better": int((tuned.losses < base.losses).sum()),
    }
    write_object(directory / "held_out.json", figures)
    _draw(directory / "logs" / "held_out.png", base, tuned)
    return figures


def _draw(path: Path, base: Found, tuned: Found) -> None:
    from matplotlib.figure import Figure  # half a second, which bad input need not wait for

    path.parent.mkdir(exist_ok=True)
    figure = Figure(figsize=(9, 4))
    points, bars = figure.subplots(1, 2, width_ratios=(3, 2))
    left, right = (found.losses / found.tokens for found in (base, tuned))
    points.scatter(left, right, s=12, color="#1f4e79", alpha=0.6)
    most = float(max(left.max(), right.max()))
    points.plot([0, most], [0, most], color="#999999", linewidth=0.8)
    points.set_xlabel("loss of the base, nats a token")
    points.set_ylabel("loss of the tuned model")
    points.set_title("below the line: better than before", fontsize=9)
    shares = [found.figures() for found in (base, tuned)]
    bars.bar(
        ["base", "tuned"],
        [each["exact_match"] for each in shares],
        yerr=[each["exact_match_error"] for each in shares],
        color=["#9db8d2", "#1f4e79"],
    )
    bars.set_ylim(0, 1)
    bars.set_ylabel("answers word for word")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
