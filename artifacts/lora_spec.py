"""Which linears an adapter stands on, how wide and how strong each pair is: PEFT's own settings.

Meaning as in peft: `target_modules` by name (whole, or the end after a dot) or as one regular
expression of the whole name, `rank_pattern` and `alpha_pattern` by the end of the name, rsLoRA's
scaling alpha / sqrt(rank) (https://arxiv.org/abs/2312.03732).
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from artifacts.architecture import Architecture

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""A linear of a decoder layer; the modules an adapter may target."""
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)
ALL_LINEAR = "all-linear"
LONGEST_PATTERN = 1000
"""Characters of a regular expression."""
USUAL_NAME = 40
"""Characters of a module's name, for counting."""
MOST_WAYS = 600_000
"""In which a pattern may try a name, at most: milliseconds. Enough for four repetitions of open
length with four choices besides, which is what real adapters have."""

_TOKEN = re.compile(
    r"(?P<open>\((?:\?(?:[:=!]|<[=!]|P<\w+>)|(?!\?)))|(?P<strange>\(\?.?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<optional>\?[?+]?)|(?P<exactly>\{\d+\}[?+]?)|(?P<repeat>(?:[*+]|\{\d*,\d*\})[?+]?)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]|\\\w|[.^$])|(?P<letter>\\.|.)",
    re.DOTALL,
)
"""What a regular expression is made of, as far as its repetitions and choices go."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank additions to some linears: W + scaling * B @ A, with A [rank, in], B [out, rank]."""

    rank: int
    alpha: float
    targets: tuple[str, ...] | str
    """Names of linears, or one regular expression that fits their whole names."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Other ranks, by a pattern of the end of a module's name; the first that fits counts."""
    alpha_pattern: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Other alphas, in the same way."""
    rslora: bool = field(default=False, kw_only=True)
    """Whether scaling is alpha / sqrt(rank) instead of alpha / rank."""
    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    """Layers that have pairs, if not all."""
    excluded: tuple[str, ...] | str = field(default=(), kw_only=True)
    """Targets that have none, named in the same way."""

    @property
    def scaling(self) -> float:
        """The factor on B @ A where no pattern says otherwise."""
        return self._scaling(self.alpha, self.rank)

    def rank_of(self, module: str) -> int:
        """The inner width of a module's pair."""
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """The factor on a module's B @ A."""
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return self._scaling(alpha, self.rank_of(module))

    def selects(self, module: str) -> bool:
        """Whether a linear of this Hugging Face name (`model.layers.0.self_attn.q_proj`) is one."""
        if _named(self.excluded, module) or not _named(self.targets, module):
            return False
        if self.layers is None or isinstance(self.targets, str):
            return True
        found = _LAYER.match(module)
        return found is not None and int(found[1]) in self.layers

    def shapes(
        self, architecture: Architecture
    ) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """Module name -> (shape of A, shape of B) of every pair, in the model's order."""
        found = {}
        for module, (out, width) in linears(architecture).items():
            if self.selects(module):
                rank = self.rank_of(module)
                found[module] = ((rank, width), (out, rank))
        return found

    def unused(self, modules: Iterable[str]) -> list[str]:
        """Targets and patterns that fit none of the modules: whoever wrote them meant something."""
        modules = list(modules)
        alone = [self.targets] if isinstance(self.targets, str) else [(t,) for t in self.targets]
        if self.excluded:  # a target may be excluded everywhere; peft itself writes such files
            alone = []
        found = [
            f"target {each if isinstance(each, str) else each[0]}"
            for each in alone
            if not any(_named(each, module) for module in modules)
        ]
        for name in ("rank_pattern", "alpha_pattern"):
            for key in getattr(self, name):
                if not any(_fits(key, module) for module in modules):
                    found.append(f"{name} {key}")
        return found

    def _scaling(self, alpha: float, rank: int) -> float:
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def linears(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Module name -> (out, in) of every linear that an adapter may stand on, in the model's order.

    The output head is none of them.
    """
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in architecture.tensor_shapes().items()
        if name.removesuffix(".weight").rsplit(".", 1)[-1] in PROJECTIONS and len(shape) == 2
    }


def problem_with_pattern(text: Any) -> str | None:
    """Why a text from a file cannot serve as a regular expression, or None.

    What can take longer than anybody lives is refused: a repetition of a repetition or of
    alternatives, and so many of them one after another that there are too many ways to try a name.
    """
    if not isinstance(text, str) or not text:
        return "no text"
    if len(text) > LONGEST_PATTERN:
        return f"longer than {LONGEST_PATTERN} characters"
    try:
        re.compile(text)
        repetitions, choices = _freedom(_TOKEN.finditer(text))
    except (re.error, RecursionError, OverflowError) as error:
        return f"no regular expression: {error}"
    except ValueError as error:
        return str(error)
    if math.comb(USUAL_NAME + repetitions, repetitions) * choices > MOST_WAYS:
        return "one with too many repetitions or choices in a row"
    return None


def _freedom(tokens: Iterator[re.Match[str]]) -> tuple[int, int]:
    """A group's repetitions of open length one after another, and its choices multiplied.

    Raises ValueError for what could take for ever at once, or could hide it.
    """
    branches: list[tuple[int, int]] = [(0, 1)]
    words: list[str | None] = [""]  # None for a branch that is no mere word
    plain = True  # whether what a repetition would repeat can be read in one way only
    for token in tokens:
        kind, found = token.lastgroup, token[0]
        if kind == "close":
            break
        if kind == "strange":
            raise ValueError(f"one with {found}, which is not supported here")
        if kind == "or":
            branches.append((0, 1))
            words.append("")
            continue
        repetitions, choices = branches[-1]
        if kind == "open":
            inside = _freedom(tokens)
            plain = inside == (0, 1)
            branches[-1] = repetitions + inside[0], choices * inside[1]
        elif kind == "optional":
            branches[-1] = repetitions, choices * 2
        elif kind in ("repeat", "exactly"):
            if not plain:
                raise ValueError("a repetition of a repetition or of alternatives")
            branches[-1] = repetitions + (kind == "repeat"), choices
        else:
            plain = True
        before = words[-1]
        words[-1] = None if before is None or kind != "letter" else before + found
    mere = [word for word in words if word is not None]
    # Of mere words only those can fit at one place of which one begins with the other.
    fitting = max((sum(map(word.startswith, mere)) for word in mere), default=0)
    return (
        max(repetitions for repetitions, _ in branches),
        max(choices for _, choices in branches) * (fitting + len(words) - len(mere)),
    )


def _named(names: tuple[str, ...] | str, module: str) -> bool:
    if isinstance(names, str):
        return names == ALL_LINEAR or re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _by_pattern(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    for key, value in patterns.items():
        if _fits(key, module):
            return value
    return otherwise


def _fits(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
