"""The order of work in plain Python: which steps a target needs, each step once, a rejection ends.

Knows no stage and no Prefect. `flows/lifecycle.py` says which steps there are.
"""

import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.approval import Approval, approval_of
from artifacts.claims import Claims, claims
from artifacts.errors import BadInput, MindCycleError, said_of
from artifacts.manifest import read_manifest
from flows.stage_process import StageOutcome, run_stage
from stages.spec import Request, StageConfig, StageSpec

if TYPE_CHECKING:
    from artifacts.remote import Remote


@dataclass(frozen=True)
class Step:
    """One stage at one place of the chain."""

    name: str
    spec: StageSpec
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Role -> name of the step whose artifact fills it."""
    given: Mapping[str, Path] = field(default_factory=dict)
    """Role -> directory of an artifact that fills it instead of a step's."""

    def with_given(self, given: Mapping[str, Path]) -> "Step":
        """This step with artifacts for some of its roles. Raises BadInput for unknown roles."""
        roles = self.spec.inputs
        if strange := sorted(given.keys() - roles.keys()):
            raise BadInput(
                *(
                    f"input {role}: {self.name} takes no such input, only "
                    f"{', '.join(roles) or 'none'}"
                    for role in strange
                )
            )
        return replace(self, given={**self.given, **given})


@dataclass(frozen=True)
class Work:
    """What is to be run: steps in order, the config of each stage, and where to."""

    name: str
    steps: Sequence[Step]
    configs: Mapping[str, StageConfig]
    """Stage name -> its config."""
    store: Path
    remote: str | None = None
    """URL of a store elsewhere, where finished work is found and left."""

    def needed(self, target: str, given: Mapping[str, Path] | None = None) -> "Work":
        """This work cut down to `target` and what it needs, if its `given` roles are filled.

        Raises BadInput if there is no such step or role.
        """
        if target not in (names := [step.name for step in self.steps]):
            raise BadInput(f"{target}: is no step, the steps are {', '.join(names)}")
        wanted, kept = {target}, []
        for step in reversed(self.steps):
            if step.name in wanted:
                step = step.with_given(given or {}) if step.name == target else step
                wanted |= {name for role, name in step.inputs.items() if role not in step.given}
                kept.append(step)
        return replace(self, steps=kept[::-1])


@dataclass
class Result:
    """What a chain has brought about, in the order of the steps."""

    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    rejected_by: str | None = None
    """The step that rejected, by its rules or by a person; what came after it was not run."""
    waiting: str | None = None
    """The step whose artifact a person has yet to approve; what came after it was not run."""


@dataclass(frozen=True)
class StepCall:
    """One step ready to run."""

    step: Step
    request: Request
    log: Path
    check_inputs: bool
    using: Claims
    """What the chain uses; nothing of it is removed while the chain runs."""
    remote: "Remote | None" = None

    def run(self, on_line: Callable[[str], None]) -> StageOutcome:
        """Run it in this process's care. Raises BadInput or StageFailed."""
        return run_stage(
            self.step.spec,
            self.request,
            on_line,
            self.log,
            claim=self.using.add,
            remote=self.remote,
            check_inputs=self.check_inputs,
        )


_RUNS = itertools.count(1)
"""Two runs of one process in one second differ by this."""
Runner = Callable[[StepCall], StageOutcome]
"""Runs a step and shows it; a plain call, or a Prefect task around one."""
Asker = Callable[[Work, StageOutcome], Approval | None]
"""Asks a person whether what a step has approved may go on; None if nobody answers here."""


def run_chain(work: Work, runner: Runner, ask: Asker = lambda work, outcome: None) -> Result:
    """Run the steps in order until the end, the first rejection, or an approval that is missing.

    Raises BadInput before any work if something from outside is missing, and what a step raises.
    """
    check_sources(work)
    label = _run_label(work.name)
    with claims(label) as using:
        for step in work.steps:
            for path in step.given.values():
                using.add(path)
        return _run_steps(work, runner, ask, using, work.store / "logs" / label)


def _run_steps(work: Work, runner: Runner, ask: Asker, using: Claims, logs: Path) -> Result:
    result, remote = Result(), None
    if work.remote is not None:
        from artifacts.remote import Remote

        remote = Remote(work.remote)
    for step in work.steps:
        made = {
            role: result.outcomes[source].path
            for role, source in step.inputs.items()
            if role not in step.given
        }
        config = work.configs[step.spec.name]
        request = Request(
            stage=step.spec.name,
            config=config.model_dump(mode="json"),
            inputs={role: str(path) for role, path in {**made, **step.given}.items()},
            store=str(work.store),
        )
        # What this chain made or found was compared byte by byte on the way.
        log = logs / f"{step.name}.log"
        outcome = runner(StepCall(step, request, log, bool(step.given), using, remote))
        result.outcomes[step.name] = outcome
        if outcome.rejected:
            result.rejected_by = step.name
            break
        if config.needs_approval():
            approval = approval_of(work.store, outcome.manifest) or ask(work, outcome)
            if approval is None:
                result.waiting = step.name
                break
            if not approval.approved:
                result.rejected_by = step.name
                break
    return result


def check_sources(work: Work) -> None:
    """Everything from outside that the steps will read, looked into before the first one works.

    Raises BadInput with every problem.
    """
    problems: list[str] = []
    for name in dict.fromkeys(step.spec.name for step in work.steps):
        try:
            config = work.configs[name]
            missing = [path for path in config.source_files() if not path.is_file()]
            problems += [f"{name}: {path}: is no file" for path in missing]
            if not missing:
                config.look_into_sources()
        except OSError as error:
            problems.append(f"{name}: {said_of(error, name)}")
        except MindCycleError as error:
            problems += [
                line if line.startswith(f"{name}.") else f"{name}: {line}"
                for line in str(error).splitlines()
            ]
    for step in work.steps:
        for role, path in step.given.items():
            try:
                manifest, wanted = read_manifest(path), step.spec.inputs[role].kinds
                if manifest.kind not in wanted:
                    problems.append(
                        f"{step.name}: input {role}: {path} is of kind {manifest.kind}, "
                        f"needed is {' or '.join(wanted)}"
                    )
                elif manifest.config.get("approval") is True:
                    given = approval_of(path.resolve().parent.parent, manifest)
                    if given is None or not given.approved:
                        problems.append(
                            f"{step.name}: input {role}: {path} asks for a person's approval "
                            "and has none; mindcycle approve would give it"
                        )
            except BadInput as error:
                problems += [f"{step.name}: input {role}: {line}" for line in error.problems]
    if problems:
        raise BadInput(*problems)


def _run_label(name: str) -> str:
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    # Machines that share a store may have the same process ids, containers above all.
    return f"{now}-{name}-{socket.gethostname()}-{os.getpid()}-{next(_RUNS)}"
