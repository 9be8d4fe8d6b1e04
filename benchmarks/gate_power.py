"""How often the gate approves: models of equal skill (its error), and a true gain (its power).

    .venv/bin/python -m benchmarks.gate_power

Pairs of answers are drawn at random: a share of the items is answered differently by the two
models, and the gain decides who is right on them. Each cell is the share of approvals by the
gate's own rules, gain_over_base at 0 and no_regression with a margin, at confidence 0.95.
"""

from collections.abc import Callable, Sequence

import numpy as np

from stages.gate.statistics import difference_bound, difference_p, holm

ITEMS = (100, 300, 1_000, 3_000, 14_042)
GAINS = (0.0, 0.01, 0.02, 0.05, 0.10)
DISAGREE = 0.25
"""Share of items on which just one of the two models is right."""
DRAWS = 4_000
CONFIDENCE = 0.95
MARGIN = 0.02


def main() -> None:
    """Print the tables."""
    rng = np.random.default_rng(0)
    print("gain_over_base, at_least 0: share approved by true gain\n")
    _table(lambda n, gain: _approved(rng, n, gain, 0.0), GAINS)
    print(f"\nno_regression, margin {MARGIN}: share approved by true change\n")
    changes = (-2 * MARGIN, -MARGIN, -MARGIN / 2, 0.0, MARGIN)
    _table(lambda n, change: _approved(rng, n, change, -MARGIN), changes)
    print("\nno true gain, by the share of items answered differently\n")
    shares = (0.05, 0.1, 0.25, 0.5)
    _table(lambda n, share: _approved(rng, n, 0.0, 0.0, share), shares)
    print("\nno true gain on any of k tasks of 1,000 items: share approved\n")
    print("| tasks | gain_on_any (Holm) | each at 0.95, any one |\n|---|---|---|")
    for tasks in (2, 5, 20):
        corrected, plain = _any(rng, tasks)
        print(f"| {tasks} | {corrected:.3f} | {plain:.3f} |")


def _table(approved: Callable[[int, float], float], values: Sequence[float]) -> None:
    print("| items | " + " | ".join(f"{value:+.2f}" for value in values) + " |")
    print("|---|" + "---|" * len(values))
    for n in ITEMS:
        cells = " | ".join(f"{approved(n, value):.3f}" for value in values)
        print(f"| {n:,} | {cells} |", flush=True)


def _difference(
    rng: np.random.Generator, items: int, gain: float, disagree: float = DISAGREE
) -> np.ndarray:
    wins, losses = (disagree + gain) / 2, (disagree - gain) / 2
    return rng.choice([1.0, -1.0, 0.0], items, p=[wins, losses, 1 - disagree])


def _approved(
    rng: np.random.Generator, items: int, gain: float, above: float, disagree: float = DISAGREE
) -> float:
    alone = np.arange(items)
    draws = max(400, min(DRAWS, 8_000_000 // items))
    bounds = [
        difference_bound(_difference(rng, items, gain, disagree), alone, CONFIDENCE).bound
        for _ in range(draws)
    ]
    return float(np.mean(np.array(bounds) > above))


def _any(rng: np.random.Generator, tasks: int) -> tuple[float, float]:
    alone, found = np.arange(1_000), []
    for _ in range(DRAWS):
        p = [difference_p(_difference(rng, 1_000, 0.0), alone, 0.0) for _ in range(tasks)]
        found.append((min(holm(p)) < 1 - CONFIDENCE, min(p) < 1 - CONFIDENCE))
    corrected, plain = np.mean(found, axis=0)
    return float(corrected), float(plain)


if __name__ == "__main__":
    main()
