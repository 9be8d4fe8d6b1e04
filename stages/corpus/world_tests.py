"""The generated world's questions, in the forms in which MMLU, C-Eval and alpaca publish theirs.

`world/` holds
- `mmlu/{dev,val,test}/<subject>_{split}.csv`: no header; question, four options, answer letter.
- `ceval/{dev,val}/<subject>_{split}.csv`: header id,question,A,B,C,D,answer; dev has an
  explanation too.
- `mmlu.groups.json`, `ceval.groups.json`: subject -> its name and the category it counts for.
- `sft.jsonl`: one object a line; `instruction` is the bare question, `output` the bare value.
- `facts.json`: `<suite>/<subject>/<row>` of a scored question -> the fact it asks about, which is
  the same in both languages.

A subject is an attribute. Scored are questions about held-out countries: MMLU's test, C-Eval's val
(C-Eval publishes no answers to its test). Few-shot examples (dev), MMLU's val and the fine-tuning
examples come from the training half; none of its questions is a scored one.
"""

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

from stages.corpus.world import LANGUAGES, Fact, Language, World

LETTERS = "ABCD"
FEW_SHOT = 5
"""Examples a subject, as MMLU and C-Eval have."""
SUITES: dict[Language, str] = {"en": "mmlu", "zh": "ceval"}
SCORED: dict[Language, str] = {"en": "test", "zh": "val"}


def write_world(directory: Path, world: World) -> dict[str, int]:
    """Write everything into `directory` (created). Returns how many items each part has."""
    counts = {"sft": _write_sft(directory, world)}
    clusters: dict[str, str] = {}
    for language in LANGUAGES:
        suite = SUITES[language]
        for split, facts in _splits(world, language).items():
            place = directory / suite / split
            place.mkdir(parents=True, exist_ok=True)
            for attribute, word in enumerate(world.attributes):
                asked = [fact for fact in facts if fact.attribute == attribute]
                path = place / f"{word.key}_{split}.csv"
                _write_csv(path, world, asked, language, split)
                if split == SCORED[language]:
                    for row, fact in enumerate(asked):
                        clusters[f"{suite}/{word.key}/{row}"] = cluster(world, fact)
        groups = {
            word.key: {
                "name": word.name.en if language == "en" else word.name.zh,
                "category": word.group,
            }
            for word in world.attributes
        }
        _write_json(directory / f"{suite}.groups.json", groups)
        counts[suite] = len(world.held_out_countries) * len(world.attributes)
    _write_json(directory / "facts.json", clusters)
    return counts


def cluster(world: World, fact: Fact) -> str:
    """A name for the fact, the same in both languages."""
    return f"{world.countries[fact.country].en}.{world.attributes[fact.attribute].key}"


def _splits(world: World, language: Language) -> dict[str, list[Fact]]:
    shots = min(FEW_SHOT, len(world.training_countries))
    dev = list(world.facts(world.training_countries[:shots]))
    splits = {"dev": dev, SCORED[language]: list(world.facts(world.held_out_countries))}
    if language == "en":
        splits["val"] = list(world.facts(world.training_countries[shots:]))
    return splits


def _write_csv(
    path: Path, world: World, facts: Sequence[Fact], language: Language, split: str
) -> None:
    rng = world.rng(f"options/{language}/{split}/{path.stem}")
    answers = balanced_letters(len(facts), rng)
    explained = language == "zh" and split == "dev"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if language == "zh":
            writer.writerow(
                ["id", "question", *LETTERS, "answer"] + (["explanation"] if explained else [])
            )
        for number, (fact, answer) in enumerate(zip(facts, answers, strict=True)):
            options = _options(world, fact, language, answer, rng)
            row = [world.question(fact, language), *options, LETTERS[answer]]
            if explained:
                row.append("{c} 的 {a} 是 {v}。".format(**world.words(fact, language)))
            writer.writerow([number, *row] if language == "zh" else row)


def balanced_letters(count: int, rng: random.Random) -> list[int]:
    """Positions 0 to 3 in random order, each as often as any other (or one time more)."""
    letters = [k % len(LETTERS) for k in range(count)]
    rng.shuffle(letters)
    return letters


def _options(
    world: World, fact: Fact, language: Language, answer: int, rng: random.Random
) -> list[str]:
    """All four values of the attribute, the right one at place `answer`."""
    values = [
        word.en if language == "en" else word.zh for word in world.attributes[fact.attribute].values
    ]
    right = values.pop(fact.value)
    rng.shuffle(values)
    values.insert(answer, right)
    return values


def _write_sft(directory: Path, world: World) -> int:
    examples = [
        {
            "instruction": world.question(fact, language),
            "input": "",
            "output": world.words(fact, language)["v"],
        }
        for fact in world.facts(world.training_countries)
        for language in LANGUAGES
    ]
    world.rng("sft").shuffle(examples)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "sft.jsonl").open("w", encoding="utf-8", newline="") as file:
        for example in examples:
            file.write(json.dumps(example, ensure_ascii=False) + "\n")
    return len(examples)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
