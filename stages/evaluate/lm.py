"""Our engines as a model that lm-eval can ask."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from artifacts.errors import BadInput
from stages.evaluate.backends import Backend
from stages.evaluate.drawing import Wanted, draw
from stages.evaluate.kept import Kept
from stages.evaluate.rows import Batch, Scored, Scorer, batches, make_rows
from stages.evaluate.sampling import Sampling
from stages.evaluate.text import TextCodec
from stages.progress import Progress

Encoded = tuple[Any, Any, Any]
"""What was asked, context ids, continuation ids: the form lm-eval passes."""
Pair = tuple[np.ndarray, np.ndarray]
"""Context and continuation ids, int32."""


class EngineLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """lm-eval's model interface over a Backend.

    Contexts are never cut here: what does not fit is an error, and whoever makes prompts asks
    `fits` first.
    """

    def __init__(
        self,
        backend: Backend,
        codec: TextCodec,
        sampling: Sampling,
        batch_size: int,
        max_length: int | None = None,
        kept: Kept | None = None,
    ):
        super().__init__()
        self._backend, self._codec, self._sampling = backend, codec, sampling
        self._batch_size, self._kept = batch_size, kept
        self.max_length = min(max_length or backend.max_positions, backend.max_positions)
        # A text ends where it would be served; a model may name more ends than its tokenizer.
        self._ends = frozenset(backend.eos_ids) or frozenset([self.eot_token_id])
        self._encoded: dict[tuple[str, str], Pair] = {}  # what `fits` and scoring share

    @property
    def eot_token_id(self) -> int:
        return int(self._codec.eos_id or 0)

    @property
    def prefix_token_id(self) -> int:
        return self._codec.prefix_id

    @property
    def tokenizer_name(self) -> str:
        return self._codec.hash

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        return [int(id) for id in self._codec.encode([string])[0]]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._codec.chat_template if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._codec.render_chat(chat_history, add_generation_prompt)

    def fits(self, context: str, continuations: Sequence[str]) -> bool:
        """Whether the context with any of the continuations is short enough, as lm-eval counts:
        the last token is predicted, not read."""
        longest = max(len(continuation.encode()) for continuation in continuations)
        if len(context.encode()) + longest + 2 <= self.max_length:
            return True  # a token is a byte at least; 2 for BOS and a tokenizer's own first space
        pairs = self._pairs([(context, continuation) for continuation in continuations])
        return all(len(left) + len(right) - 1 <= self.max_length for left, right in pairs)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Scored]:
        pairs = self._pairs([request.args for request in requests])
        _refuse_alike(requests, pairs)
        encoded = [
            (request.args, left, right)
            for request, (left, right) in zip(requests, pairs, strict=True)
        ]
        self._encoded.clear()
        return self._loglikelihood_tokens(encoded)

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **kwargs: Any) -> list[Scored]:
        contexts = [np.asarray(left, np.int32) for _, left, _ in requests]
        continuations = [np.asarray(right, np.int32) for _, _, right in requests]
        for asked, left, right in zip(requests, contexts, continuations, strict=True):
            if len(left) + len(right) - 1 > self.max_length:
                raise BadInput(
                    f"max_length: is {self.max_length}; a prompt of {len(left)} and an answer of "
                    f"{len(right)} tokens do not fit: ...{str(asked[0])[-80:]!r}"
                )
        rows = make_rows(contexts, continuations)
        # Progress counts questions: requests with the same context.
        question = [hash(context.tobytes()) for context in contexts]
        open_rows = Counter(question[row.requests[0]] for row in rows)
        answers: list[Scored] = [(0.0, False)] * len(requests)

        def finish(batch: Batch, found: list[list[Any]]) -> int:
            done = 0
            for row, of_row in zip(batch.rows, found, strict=True):
                for index, (logprob, greedy) in zip(row.requests, of_row, strict=True):
                    answers[index] = (float(logprob), bool(greedy))
                open_rows[question[row.requests[0]]] -= 1
                done += open_rows[question[row.requests[0]]] == 0
            return done

        self._work(
            list(batches(rows, self._batch_size)),
            len(open_rows),
            _batch_key,
            Scorer(self._backend).score,
            finish,
        )
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        windows: list[Encoded] = []
        owner: list[int] = []
        # Each text follows the prefix token, so BOS would stand there twice.
        texts = self._codec.encode([request.args[0] for request in requests], begins=False)
        for index, ids in enumerate(texts):
            for window in get_rolling_token_windows(
                token_list=ids.tolist(),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            ):
                windows.append((None, *make_disjoint_window(window)))
                owner.append(index)
        totals = [0.0] * len(requests)
        for index, (logprob, _) in zip(owner, self._loglikelihood_tokens(windows), strict=True):
            totals[index] += logprob
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts drawn under the profile; of the task's own settings only the stop texts count."""
        wanted: list[Wanted] = []
        seen: Counter[bytes] = Counter()
        prompts = self._codec.encode([request.args[0] for request in requests])
        for request, prompt in zip(requests, prompts, strict=True):
            if not 0 < len(prompt) < self.max_length:
                raise BadInput(
                    f"max_length: is {self.max_length}; a prompt of {len(prompt)} tokens leaves "
                    f"no room for an answer: ...{request.args[0][-80:]!r}"
                )
            until = request.args[1].get("until") or []
            stop = (*self._sampling.stop, *([until] if isinstance(until, str) else until))
            key = prompt.tobytes()
            wanted.append(Wanted(prompt, tuple(text for text in stop if text), seen[key]))
            seen[key] += 1
        texts = [""] * len(requests)
        order = sorted(range(len(wanted)), key=lambda i: (-len(wanted[i].prompt), i))
        size = self._batch_size

        def finish(batch: list[int], found: list[str]) -> int:
            for i, text in zip(batch, found, strict=True):
                texts[i] = text
            return len(batch)

        self._work(
            [order[begin : begin + size] for begin in range(0, len(order), size)],
            len(order),
            lambda batch: [
                [wanted[i].prompt.tobytes().hex(), wanted[i].stop, wanted[i].repeat] for i in batch
            ],
            lambda batch: draw(
                self._backend,
                [wanted[i] for i in batch],
                self._sampling,
                self._ends,
                self.max_length,
                self._codec.decode,
            ),
            finish,
        )
        return texts

    def _work(
        self,
        batches: Sequence[Any],
        total: int,
        key: Callable[[Any], Any],
        compute: Callable[[Any], list[Any]],
        finish: Callable[[Any, list[Any]], int],
    ) -> None:
        """Compute batch after batch, or take what an interrupted run has kept, and say how far."""
        progress = Progress("evaluate", total, "questions")
        progress.update(done := 0)
        for batch in batches:
            name = hashlib.sha256(repr(key(batch)).encode()).hexdigest()
            found = self._kept.get(name) if self._kept else None
            if found is None:
                found = compute(batch)
                if self._kept is not None:
                    self._kept.put(name, found)
            done += finish(batch, found)
            progress.update(done)

    def _pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Context and continuation ids of each pair of texts, split the way lm-eval splits them:
        both together are encoded, and what the context alone does not cover is the continuation.
        """
        new = list(dict.fromkeys(pair for pair in pairs if pair not in self._encoded))
        parts = []
        for context, continuation in new:
            bare = context.rstrip()  # spaces belong to the answer's first token
            parts.append((bare, context[len(bare) :] + continuation))
        texts = {text for bare, rest in parts if bare for text in (bare, bare + rest)}
        ids = dict(zip(texts, self._codec.encode(list(texts)), strict=True))
        for pair, (bare, rest) in zip(new, parts, strict=True):
            if bare:
                left, right = ids[bare], ids[bare + rest][len(ids[bare]) :].copy()
            else:  # the prefix token takes the place of a context
                left = np.array([self.prefix_token_id], np.int32)
                (right,) = self._codec.encode([rest], begins=False)
            self._encoded[pair] = (left, right)
        return [self._encoded[pair] for pair in pairs]


def _batch_key(batch: Batch) -> Any:
    rows = [[row.ids.tobytes().hex(), row.context, row.last] for row in batch.rows]
    return [batch.shared, rows]


def _refuse_alike(requests: Sequence[Instance], pairs: Sequence[Pair]) -> None:
    """Raise BadInput for answers that the tokenizer loses or cannot tell apart.

    Options whose very text is the same are the benchmark's own flaw and pass: they tie.
    """
    problems: list[str] = []
    by_question: dict[Any, dict[bytes, str]] = defaultdict(dict)
    for request, (_, ids) in zip(requests, pairs, strict=True):
        context, text = request.args[0], request.args[1]
        where = f"{request.task_name}, question {request.doc_id}"
        if not len(ids):
            problems.append(f"{where}: the answer {text!r} has no token of its own")
            continue
        texts = by_question[request.task_name, request.doc_id, context]
        other = texts.setdefault(ids.tobytes(), text)
        if other != text:
            problems.append(
                f"{where}: the answers {other!r} and {text!r} are the same tokens "
                f"{ids.tolist()}; the tokenizer cannot tell them apart"
            )
    if problems:
        more = [f"and {len(problems) - 10} answers more"] if len(problems) > 10 else []
        raise BadInput(*problems[:10], *more)
