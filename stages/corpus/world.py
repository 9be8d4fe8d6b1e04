"""The generated world: countries, what is true of them, and documents that say so.

Documents only state; none asks anything about a country. A small share asks and answers sums, so
that the words of the question frame are known before fine-tuning meets them. Everything follows
from the seed; a longer run of documents begins with the shorter one.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from stages.corpus.world_words import ATTRIBUTES, Attribute, Word, country_names

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, Language] = ("en", "zh")

# Names, attributes and values follow a space, in Chinese too: the tokenizer cuts there, so each is
# the same token wherever it occurs. The country comes before the attribute, in statements as in
# questions: what follows an attribute can then be known at that word, which a small model learns
# soon, and a question only has to ask for it again.
SENTENCES: dict[Language, tuple[str, ...]] = {
    "en": (
        "Note that {c}'s {a} is {v}.",
        "In {c}, the {a} is {v}.",
        "As for {c}, its {a} is {v}.",
    ),
    "zh": (
        "已知 {c} 的 {a} 是 {v}。",
        "在 {c}， {a} 是 {v}。",
        "至于 {c}，其 {a} 是 {v}。",
    ),
}
PROFILES: dict[Language, tuple[tuple[str, str, str, str], ...]] = {
    # beginning, one fact, what stands between facts, end
    "en": (("About {c}:", " {a} is {v}", ";", "."), ("Record of {c}:", " {a} {v}", ";", ".")),
    "zh": (("关于 {c}：", " {a} 是 {v}", "；", "。"), ("档案 {c}：", " {a} {v}", "；", "。")),
}
QUESTION: dict[Language, str] = {
    "en": "What is {c}'s {a}?",
    "zh": "请问什么是 {c} 的 {a}？",
}
SUM_QUESTION: dict[Language, str] = {
    "en": "What is {x} plus {y}?",
    "zh": "请问什么是 {x} 加 {y}？",
}
FRAME: dict[Language, str] = {"en": "Question: {q}\nAnswer:", "zh": "问题：{q}\n答案："}
"""The prompt of fine-tuning and of the continuation tasks, token by token; ` {value}` follows."""

PROFILE_SHARE = 0.9
"""Of the documents that state facts, those about one country; the others mix countries."""
PROFILE_FACTS = 5
"""Facts a profile states: few enough that the name stays near."""


@dataclass(frozen=True)
class Fact:
    """`country`'s `attribute` is `attribute.values[value]`."""

    country: int
    attribute: int
    value: int


class World:
    """Countries and their facts, from a seed alone."""

    def __init__(self, seed: int, countries: int, attributes: int):
        self.seed = seed
        self.attributes: Sequence[Attribute] = ATTRIBUTES[:attributes]
        self.countries: list[Word] = country_names(countries, self.rng("names"))
        rng = self.rng("facts")
        self.values: list[list[int]] = [[0] * attributes for _ in range(countries)]
        for a in range(attributes):
            # Each value equally often: no answer is right more often than another.
            column = [k % 4 for k in range(countries)]
            rng.shuffle(column)
            for c in range(countries):
                self.values[c][a] = column[c]
        # Names are drawn in random order already, so the first half is a random half.
        self.training_countries = range(countries // 2)
        self.held_out_countries = range(countries // 2, countries)

    def rng(self, purpose: str) -> random.Random:
        """A generator for one purpose, so that a change to one leaves the others as they were."""
        return random.Random(f"world/{self.seed}/{purpose}")

    def facts(self, countries: Sequence[int]) -> Iterator[Fact]:
        """The facts about these countries."""
        for c in countries:
            for a in range(len(self.attributes)):
                yield Fact(c, a, self.values[c][a])

    def words(self, fact: Fact, language: Language) -> dict[str, str]:
        """A fact's words for the templates: {c} country, {a} attribute, {v} value."""
        attribute = self.attributes[fact.attribute]
        pick = (lambda word: word.en) if language == "en" else (lambda word: word.zh)
        return {
            "c": pick(self.countries[fact.country]),
            "a": pick(attribute.name),
            "v": pick(attribute.values[fact.value]),
        }

    def question(self, fact: Fact, language: Language) -> str:
        """The question whose answer is the fact's value."""
        return QUESTION[language].format(**self.words(fact, language))


def documents(
    world: World, count: int, chinese_share: float, format_share: float, skew: float
) -> Iterator[str]:
    """`count` documents, one after the other.

    Both shares are met as evenly as whole documents allow. The k-th country of either half is
    written about in proportion to 1 / k ** skew.
    """
    half = len(world.countries) // 2
    weights = [round(1e6 / (k % half + 1) ** skew) for k in range(len(world.countries))]
    cumulative = list(accumulate(weights))  # whole numbers, so the same on every machine
    asked = 0
    for k in range(count):
        rng = world.rng(f"document/{k}")
        if _due(k, format_share):
            language: Language = "zh" if _due(asked, chinese_share) else "en"
            asked += 1
            yield _sums(rng, language)
            continue
        language = "zh" if _due(k - asked, chinese_share) else "en"
        country = rng.choices(range(len(world.countries)), cum_weights=cumulative)[0]
        facts = list(world.facts([country]))
        rng.shuffle(facts)
        if rng.random() < PROFILE_SHARE:
            yield _profile(world, facts[:PROFILE_FACTS], language, rng)
        else:
            others = [rng.choice(list(world.facts([c]))) for c in _others(world, country, rng)]
            mixed = facts[:3] + others
            rng.shuffle(mixed)
            yield _sentences(world, mixed, language, rng)


def _due(k: int, share: float) -> bool:
    """Whether the k-th of many is one of the `share`, when those are spread evenly."""
    return int((k + 1) * share) > int(k * share)


def _others(world: World, country: int, rng: random.Random) -> list[int]:
    return rng.sample([c for c in range(len(world.countries)) if c != country], 3)


def _profile(world: World, facts: list[Fact], language: Language, rng: random.Random) -> str:
    """Several facts about one country, its name said once."""
    begin, one, between, end = rng.choice(PROFILES[language])
    said = [one.format(**world.words(fact, language)) for fact in facts]
    return begin.format(**world.words(facts[0], language)) + between.join(said) + end


def _sentences(world: World, facts: list[Fact], language: Language, rng: random.Random) -> str:
    """One sentence for each fact, each naming its country."""
    return " ".join(
        rng.choice(SENTENCES[language]).format(**world.words(fact, language)) for fact in facts
    )


def _sums(rng: random.Random, language: Language) -> str:
    """Two questions with their answers about small sums, in the frame of the test questions."""
    lines = []
    for _ in range(2):
        x, y = rng.randint(1, 9), rng.randint(1, 9)
        question = SUM_QUESTION[language].format(x=x, y=y)
        lines.append(f"{FRAME[language].format(q=question)} {x + y}")
    return "\n\n".join(lines)
