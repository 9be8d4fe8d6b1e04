"""Examples as token ids with labels, what was dropped and why, and the batch of every step."""

from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from artifacts.wording import counted
from stages.finetune.examples import Example
from stages.finetune.templates import Segment, Template, render, reserved

NO_LOSS = -100
"""Label of a token that is read but not learned."""

OPEN = 256
"""Rows that may still be filled while packing; more would be slow and gain little."""


@dataclass(frozen=True)
class Encoded:
    """One example: the tokens, and for each the label it has as the target of the one before."""

    ids: np.ndarray
    """int32 [T]"""
    labels: np.ndarray
    """int32 [T]: the token itself where it is learned, else NO_LOSS."""


@dataclass(frozen=True)
class Row:
    """What stands in one row of a batch: one example, or several that do not see each other."""

    inputs: np.ndarray
    """int32 [T]"""
    targets: np.ndarray
    """int32 [T]: what follows each input where it is learned, else NO_LOSS."""
    documents: np.ndarray
    """int32 [T]: the example's number in its row, from 1."""


def alone(example: Encoded) -> Row:
    """An example in a row of its own."""
    inputs = example.ids[:-1]
    return Row(inputs, example.labels[1:], np.ones(len(inputs), np.int32))


def packed(examples: list[Encoded], longest: int, seed: int) -> list[Row]:
    """Examples in rows of up to `longest` tokens: in an order drawn from `seed`, each goes into the
    first of the last OPEN rows that has room."""
    order = np.random.default_rng([seed, len(examples)]).permutation(len(examples))
    rows: list[list[Encoded]] = []
    room: list[int] = []
    for index in order:
        size = len(examples[index].ids) - 1
        begin = max(0, len(rows) - OPEN)
        place = next((i for i in range(begin, len(rows)) if room[i] >= size), None)
        if place is None:
            place = len(rows)
            rows.append([])
            room.append(longest)
        rows[place].append(examples[index])
        room[place] -= size
    return [_joined(row) for row in rows]


def _joined(examples: list[Encoded]) -> Row:
    rows = [alone(example) for example in examples]
    return Row(
        np.concatenate([row.inputs for row in rows]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.documents * number for number, row in enumerate(rows, 1)]),
    )


@dataclass
class Dataset:
    """What is learned from, and the account of what is not."""

    examples: list[Encoded] = field(default_factory=list)
    read: int = 0
    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> places of the examples dropped for it."""
    duplicates: list[str] = field(default_factory=list)
    """Places of examples whose whole text stood before; they are kept."""
    conflicts: list[str] = field(default_factory=list)
    """Places of examples whose prompt stood before with another answer; they are kept."""
    boundary_merges: list[str] = field(default_factory=list)
    """Places where the tokenizer would join prompt and answer; they are encoded apart."""

    def drop(self, reason: str, where: str) -> None:
        """Leave an example out and remember why."""
        self.dropped.setdefault(reason, []).append(where)


@dataclass(frozen=True)
class Encoder:
    """The tokenizer as training uses it."""

    tokenizer: Tokenizer
    eos_id: int
    bos: tuple[int, ...] = ()
    """Tokens that the tokenizer itself puts before every text."""

    @property
    def eos_text(self) -> str:
        """The end-of-sequence token as text."""
        return str(self.tokenizer.id_to_token(self.eos_id))

    def encode(self, segments: list[Segment]) -> tuple[Encoded, bool]:
        """Tokens and labels; the end-of-sequence token is learned after the last segment.

        Each segment is read in the context of the ones before, as scoring does; where the
        tokenizer would join it with them, it is encoded alone, as generation sees it, and the
        second result is True.
        """
        ids, labels, text, merged = list(self.bos), [NO_LOSS] * len(self.bos), "", False
        for segment in segments:
            text += segment.text
            whole = list(self.bos) + self._ids(text)
            if whole[: len(ids)] == ids:
                added = whole[len(ids) :]
            else:
                added, merged = self._ids(segment.text), True
            ids += added
            labels += added if segment.learned else [NO_LOSS] * len(added)
        ids.append(self.eos_id)
        labels.append(self.eos_id)
        return Encoded(np.array(ids, np.int32), np.array(labels, np.int32)), merged

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def build_dataset(
    examples: list[Example], template: Template, encoder: Encoder, max_length: int
) -> Dataset:
    """Render, tokenize and check every example; `max_length` counts tokens, the last included."""
    dataset = Dataset(read=len(examples))
    marks = (*reserved(template), *_special_texts(encoder.tokenizer))
    texts: set[str] = set()
    prompts: set[str] = set()
    for example in examples:
        reason = _unfit(example, marks)
        if reason:
            dataset.drop(reason, example.where)
            continue
        segments = render(template, example.turns)
        encoded, merged = encoder.encode(segments)
        if len(encoded.ids) > max_length:
            dataset.drop("longer than max_length", example.where)
            continue
        text = "".join(segment.text for segment in segments)
        prompt = "".join(segment.text for segment in segments[:-1])
        if text in texts:
            dataset.duplicates.append(example.where)
        elif prompt in prompts:
            dataset.conflicts.append(example.where)
        texts.add(text)
        prompts.add(prompt)
        if merged:
            dataset.boundary_merges.append(example.where)
        dataset.examples.append(encoded)
    return dataset


def dropped_by_text(examples: list[Example]) -> dict[str, list[str]]:
    """Reason -> places of the examples that no template and no tokenizer would make usable."""
    dropped: dict[str, list[str]] = {}
    for example in examples:
        if reason := _unfit(example, ()):
            dropped.setdefault(reason, []).append(example.where)
    return dropped


def none_left(dropped: dict[str, list[str]]) -> str:
    """The sentence for a dataset of which every example was dropped."""
    reasons = ", ".join(f"{why} ({len(found)})" for why, found in dropped.items())
    read = counted(sum(map(len, dropped.values())), "example")
    return f"finetune.data: none of {read} can be used: {reasons}"


def _unfit(example: Example, marks: tuple[str, ...]) -> str | None:
    """Why an example cannot be learned from, or None."""
    if example.turns[-1].role != "assistant":
        return "does not end with the assistant"
    answers = [turn.content for turn in example.turns if turn.role == "assistant"]
    if not all(answer.strip() for answer in answers):
        return "empty answer"
    asked = [turn.content + turn.context for turn in example.turns if turn.role == "user"]
    if not any(text.strip() for text in asked):
        return "empty question"
    # Inside a turn they would read as the template's own boundaries or as the end of the text.
    if any(mark in turn.content + turn.context for turn in example.turns for mark in marks):
        return "special token inside the text"
    return None


def _special_texts(tokenizer: Tokenizer) -> list[str]:
    return [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]


@dataclass(frozen=True)
class Batches:
    """The rows of every step, a function of seed and step alone.

    Epoch after epoch in a new order; a batch may reach from one epoch into the next.
    """

    rows: list[Row]
    size: int
    """Rows a step."""
    seed: int
    pad_id: int

    @property
    def width(self) -> int:
        """Input tokens of every batch: one shape, so that one graph serves; a multiple of 8."""
        longest = max(len(row.inputs) for row in self.rows)
        return -(-longest // 8) * 8

    def indices(self, step: int) -> list[int]:
        """Which rows step `step` (from 0) learns from."""
        count = len(self.rows)
        first = step * self.size
        found: list[int] = []
        while len(found) < self.size:
            epoch, offset = divmod(first + len(found), count)
            order = np.random.default_rng([self.seed, epoch]).permutation(count)
            found += order[offset : offset + self.size - len(found)].tolist()
        return found

    def tokens(self, step: int) -> int:
        """Input tokens of a step, without padding."""
        return sum(len(self.rows[index].inputs) for index in self.indices(step))

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a step, int32 [size, width]; padding is on the right, unlearned."""
        return self.filled(self.indices(step))

    def documents(self, step: int) -> np.ndarray | None:
        """Which example each input of a step belongs to, int32 [size, width]; 0 is padding.

        None if no row holds several.
        """
        if all(row.documents[-1] == 1 for row in self.rows):
            return None
        found = np.zeros((self.size, self.width), np.int32)
        for place, index in enumerate(self.indices(step)):
            row = self.rows[index]
            found[place, : len(row.documents)] = row.documents
        return found

    def filled(self, indices: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of these rows, int32 [rows, width]."""
        inputs = np.full((len(indices), self.width), self.pad_id, np.int32)
        targets = np.full((len(indices), self.width), NO_LOSS, np.int32)
        for place, index in enumerate(indices):
            row = self.rows[index]
            inputs[place, : len(row.inputs)] = row.inputs
            targets[place, : len(row.targets)] = row.targets
        return inputs, targets
