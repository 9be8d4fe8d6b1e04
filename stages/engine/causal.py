"""How much of causal attention is computed. Light: no framework here."""

HALVED_FROM = 128
"""Tokens from which the first half of the queries meets the first half of the keys alone.

That spares a quarter; with fewer tokens, what it costs to cut would eat it up."""


def halves(time: int) -> bool:
    """Whether attention over so many tokens works in two halves."""
    return time >= HALVED_FROM and time % 2 == 0
