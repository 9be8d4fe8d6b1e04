"""What fine-tuning teaches is what the world's test asks, token by token, in both languages."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from stages.corpus.tokenizer import train_tokenizer, write_trained
from stages.corpus.world import World, documents
from stages.corpus.world_tests import write_world
from stages.evaluate.config import TaskConfig
from stages.evaluate.sources import load_subjects
from stages.evaluate.suites import build
from stages.evaluate.text import TextCodec
from stages.finetune.dataset import NO_LOSS, Encoder
from stages.finetune.examples import Turn, read_examples
from stages.finetune.templates import render


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    world = World(seed=3, countries=12, attributes=3)
    write_world(directory / "world", world)
    write_trained(directory, train_tokenizer(documents(world, 400, 0.5, 0.1, 0.7), 420))
    return directory


@pytest.mark.parametrize(
    ("suite", "frame"), [("mmlu", "Question: {}\nAnswer:"), ("ceval", "问题：{}\n答案：")]
)
def test_a_scored_prompt_is_a_learned_prompt(corpus: Path, suite: str, frame: str) -> None:
    task = TaskConfig(suite=suite, form="continuation", data="world")  # type: ignore[arg-type, call-arg]
    codec = TextCodec(corpus)
    encoder = Encoder(Tokenizer.from_file(str(corpus / "tokenizer.json")), codec.eos_id or 0)
    seen = 0
    for lm_eval_task in build(task, load_subjects(task, corpus)).tasks.values():
        lm_eval_task.build_all_requests(rank=0, world_size=1)
        for request in lm_eval_task.instances:
            context, continuation = request.args
            question = request.doc["question"]
            assert context == frame.format(question)
            turns = (Turn("user", question), Turn("assistant", continuation.strip()))
            encoded, merged = encoder.encode(render("question", turns))
            asked, whole = codec.encode([context, context + continuation])
            assert not merged
            assert encoded.ids.tolist() == [*whole.tolist(), codec.eos_id]
            learned = np.flatnonzero(encoded.labels != NO_LOSS)
            assert learned[0] == len(asked)
            seen += 1
    assert seen == 6 * 3 * 4  # held-out countries, attributes, options


def test_the_worlds_examples_are_bare_questions_about_other_countries(corpus: Path) -> None:
    examples = read_examples([corpus / "world" / "sft.jsonl"], "alpaca")
    assert len(examples) == 6 * 3 * 2
    task = TaskConfig(suite="mmlu", form="continuation", data="world")  # type: ignore[call-arg]
    scored = {q.text for s in load_subjects(task, corpus) for q in s.questions}
    taught = {example.turns[0].content for example in examples}
    assert not scored & taught
    assert not any(text.startswith(("Question", "问题")) for text in taught)
