"""Answers for many at once: one thread that reads prompts and decodes in batches.

Each round it reads one piece of one waiting prompt and gives every running answer its next token,
so a long prompt holds nobody up for long. Answers under different adapters go in batches of their
own.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from artifacts.errors import MindCycleError
from artifacts.onnx_bundle import OnnxModel
from serving.answer import Answer, Reason
from serving.batch import Batch, Prefill
from serving.meters import Meters


class Busy(MindCycleError):
    """As many wait already as may wait."""


class Stopping(MindCycleError):
    """The server is about to end and takes nothing more."""


@dataclass(frozen=True)
class Piece:
    """More text of an answer; with `reason` it is the last."""

    text: str
    reason: Reason | None


@dataclass(frozen=True)
class Failure:
    """The answer ends here, unfinished."""

    message: str


Deliver = Callable[[Piece | Failure], None]
"""Called from the engine's thread; must return at once and raise nothing."""


@dataclass(eq=False)
class Job:
    """An answer on its way."""

    answer: Answer
    deliver: Deliver
    asked: float = field(default_factory=time.perf_counter)
    cancelled: bool = False
    """Set by whoever asked and no longer wants it."""

    def take(self, logits_V: np.ndarray, meters: Meters) -> None:
        """Draw a token and deliver its text."""
        if not self.answer.ids:
            meters.first_token.observe(time.perf_counter() - self.asked)
        text = self.answer.take(logits_V)
        meters.written.inc()
        if text or self.answer.reason:
            self.deliver(Piece(text, self.answer.reason))


@dataclass(eq=False)
class Group:
    """What is decoded together: row i of the batch is job i."""

    batch: Batch
    jobs: list[Job] = field(default_factory=list)


class Engine:
    """Runs jobs until it is stopped."""

    def __init__(self, model: OnnxModel, rows: int, waiting: int, meters: Meters):
        """At most `rows` answers are decoded at once and `waiting` more may wait."""
        self._model, self._rows, self._most_waiting = model, rows, waiting
        self._meters = meters
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._reading: deque[tuple[Job, Prefill]] = deque()
        self._groups: dict[str | None, Group] = {}
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether it takes no more jobs."""
        return self._deadline is not None

    def submit(self, answer: Answer, deliver: Deliver) -> Job:
        """Queue an answer. Raises Busy or Stopping."""
        job = Job(answer, deliver)
        with self._condition:
            if self.stopping:
                raise Stopping("the server is stopping; ask another one")
            self._forget_cancelled()
            if len(self._waiting) >= self._most_waiting:
                raise Busy(f"{len(self._waiting)} requests are waiting already; try again later")
            self._waiting.append(job)
            self._condition.notify()
        return job

    def stop(self, grace: float) -> None:
        """Take no more jobs; those there may go on for `grace` seconds. Returns at once."""
        with self._condition:
            self._deadline = time.monotonic() + grace
            self._condition.notify()

    def join(self) -> None:
        """Wait until the last job has ended, after `stop`."""
        self._thread.join()

    def _work(self) -> None:
        while self._admit():
            self._read_on()
            for group in list(self._groups.values()):
                self._step(group)
            self._count()
        for job in self._jobs():
            job.deliver(Failure("the server stopped before the answer was complete"))

    def _admit(self) -> bool:
        """Wait for work and take in what there is room for; false when it is time to end."""
        with self._condition:
            while not self._jobs() and not self.stopping:
                self._condition.wait()
            if self._deadline is not None and (
                not self._jobs() or time.monotonic() >= self._deadline
            ):
                return False
            self._forget_cancelled()
            running = len(self._reading) + sum(len(group.jobs) for group in self._groups.values())
            while self._waiting and running < self._rows:
                job = self._waiting.popleft()
                self._reading.append((job, Prefill(job.answer.prompt, job.answer.adapter)))
                running += 1
            return True

    def _forget_cancelled(self) -> None:
        """Free the places of those that nobody waits for any more; under the condition."""
        self._waiting = deque(job for job in self._waiting if not job.cancelled)

    def _read_on(self) -> None:
        """One piece of the prompt that has waited longest."""
        while self._reading and self._reading[0][0].cancelled:
            self._reading.popleft()
        if not self._reading:
            return
        job, prefill = self._reading[0]
        try:
            logits_V = prefill.step(self._model)
            if logits_V is None:
                return
            self._reading.popleft()
            self._meters.read.inc(len(job.answer.prompt))
            job.take(logits_V, self._meters)
            if job.answer.reason is None:
                adapter = job.answer.adapter
                group = self._groups.setdefault(adapter, Group(Batch(adapter)))
                group.batch.join(prefill)
                group.jobs.append(job)
        except Exception:
            if self._reading and self._reading[0][0] is job:
                self._reading.popleft()
            self._failed([job])

    def _step(self, group: Group) -> None:
        """The next token of every answer in a group."""
        self._drop_ended(group)
        if not group.jobs:
            return
        try:
            last_B = np.array([job.answer.ids[-1] for job in group.jobs])
            logits_BV = group.batch.step(self._model, last_B)
            for job, logits_V in zip(group.jobs, logits_BV, strict=True):
                job.take(logits_V, self._meters)
            self._drop_ended(group)
        except Exception:
            self._groups.pop(group.batch.adapter)
            self._failed(group.jobs)

    def _drop_ended(self, group: Group) -> None:
        rows = [
            i for i, job in enumerate(group.jobs) if job.answer.reason is None and not job.cancelled
        ]
        group.jobs = [group.jobs[i] for i in rows]
        group.batch.keep(rows)
        if not rows:
            self._groups.pop(group.batch.adapter)

    def _failed(self, jobs: list[Job]) -> None:
        """What should not happen must not end the server."""
        traceback.print_exc()
        for job in jobs:
            job.deliver(Failure("the engine failed; the server's log says why"))

    def _jobs(self) -> list[Job]:
        running = [job for group in self._groups.values() for job in group.jobs]
        return [*self._waiting, *(job for job, _ in self._reading), *running]

    def _count(self) -> None:
        self._meters.waiting.set(len(self._waiting))
        running = sum(len(group.jobs) for group in self._groups.values())
        self._meters.running.set(len(self._reading) + running)
