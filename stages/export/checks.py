"""Two promises beyond single cases: a prompt may be read in pieces, and greedy text is the same."""

from dataclasses import dataclass

import numpy as np

from artifacts.agreement import compare
from stages.export.agreement import Check, forward_in_steps
from stages.export.cases import Case
from stages.export.engines import Engine
from stages.export.references import SHORT, Reference

PIECES = (1, 3, 7)
"""Tokens that a prompt is read in at once."""
PROMPTS, PROMPT = 3, 6
"""Prompts of the greedy check, and their tokens."""


@dataclass(frozen=True)
class GreedyText:
    """What the reference writes after some prompts."""

    ids_BT: np.ndarray
    """Prompts and text, int64."""
    margin_BN: np.ndarray
    """How far each chosen token's logit was above the next one's, in units of the logits' size."""


def reference_text(reference: Reference, vocab_size: int, longest: int, seed: int) -> GreedyText:
    """Greedy text up to SHORT tokens, read anew for every token. Always in one shape of input."""
    rng = np.random.default_rng(seed)
    total = min(SHORT, longest)
    begin = min(PROMPT, total - 1)
    ids_BT = np.zeros((PROMPTS, total), np.int64)
    ids_BT[:, :begin] = rng.integers(0, vocab_size, (PROMPTS, begin))
    positions_BT = np.tile(np.arange(total), (PROMPTS, 1))
    margins = []
    for at in range(begin, total):
        mask_BT = np.tile(np.arange(total) < at, (PROMPTS, 1))
        logits_BV = reference(ids_BT, mask_BT, np.where(mask_BT, positions_BT, 0))[:, at - 1]
        ids_BT[:, at] = logits_BV.argmax(axis=-1)
        second, first = np.sort(logits_BV, axis=-1)[:, -2:].T
        scale = max(1.0, float(np.sqrt(np.mean(logits_BV.astype(np.float64) ** 2))))
        margins.append((first - second) / scale)
    return GreedyText(ids_BT, np.stack(margins, axis=1))


def greedy_check(engine: Engine, wanted: GreedyText, threshold: float) -> Check:
    """The engine's own greedy text, with its cache, token for token.

    A text is followed as far as the reference prefers its tokens by more than twice the error
    allowed: beyond a tie either text would be right.
    """
    batch, total = wanted.ids_BT.shape
    new = wanted.margin_BN.shape[1]
    clear_BN = np.logical_and.accumulate(wanted.margin_BN > 2 * threshold, axis=1)
    positions_BT = np.tile(np.arange(total), (batch, 1))
    begin, past = 0, None
    right_BN = np.zeros((batch, new), bool)
    try:
        for i, end in enumerate(range(total - new, total)):
            mask_BT = np.ones((batch, end), bool)
            ids_BS, positions_BS = wanted.ids_BT[:, begin:end], positions_BT[:, begin:end]
            logits_BSV, past = engine.forward(ids_BS, mask_BT, positions_BS, past)
            right_BN[:, i] = logits_BSV[:, -1].argmax(axis=-1) == wanted.ids_BT[:, end]
            begin = end
    except Exception as error:  # engines' exceptions have no common base but this
        return Check("greedy text", "-", " ".join(str(error).split())[:300])
    same, compared = int((clear_BN & right_BN).sum()), int(clear_BN.sum())
    said = f"{same} of {compared} tokens are the reference's"
    return Check("greedy text", said, None if same == compared else said)


def pieces_check(engine: Engine, vocab_size: int, longest: int, seed: int, allowed: float) -> Check:
    """Prompts read in pieces give the logits of prompts read whole, in the same engine."""
    rng = np.random.default_rng(seed)
    ids_BT = rng.integers(0, vocab_size, (1, longest))
    positions_BT = np.arange(longest)[None]
    full = np.ones((1, longest), bool)
    worst = 0.0
    try:
        whole, finite = forward_in_steps(engine, Case("whole", 0, ids_BT, full, positions_BT))
        for piece in PIECES:
            case = Case("in pieces", 0, ids_BT, full, positions_BT, steps=piece)
            logits, as_well = forward_in_steps(engine, case)
            finite = finite and as_well
            worst = max(worst, compare(whole, logits).scaled)  # which a NaN would not raise
    except Exception as error:  # engines' exceptions have no common base but this
        return Check("prompt in pieces", "-", " ".join(str(error).split())[:300])
    if not finite:
        return Check("prompt in pieces", "-", "numbers that are not finite")
    problem = None if worst <= allowed else f"error {worst:.3g}, allowed is {allowed:.3g}"
    return Check("prompt in pieces", f"error {worst:.1e}", problem)
