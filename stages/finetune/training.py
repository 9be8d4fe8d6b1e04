"""The training loop: the engine's step on what is trained, and states to go on from."""

# First, since it prepares the environment before MindSpore is imported.
from stages.engine import runtime  # isort: skip

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from artifacts.adapter import Adapter, Pair
from artifacts.errors import StageFailed
from artifacts.hf_model import HFModel
from stages.engine import weights
from stages.engine.model import Decoder, Lora
from stages.engine.parallel import Group
from stages.engine.settings import learning_rate
from stages.engine.stopping import StopRequest, dying_at_once, watching
from stages.engine.training import Batch, Trainer
from stages.finetune.config import FinetuneConfig
from stages.finetune.dataset import Batches
from stages.finetune.logs import MetricsFile
from stages.finetune.lora import chosen_spec, initial_adapter
from stages.finetune.resume import State, load_state, save_state
from stages.progress import Progress

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class _Trained:
    """A decoder of which something learns; `group` is this process's place among several."""

    def __init__(
        self,
        model: HFModel,
        config: FinetuneConfig,
        decoder: Decoder,
        frozen: set[str],
        group: Group,
    ):
        self._config, self._architecture = config, model.architecture
        self._decoder, self._group = decoder, group
        weights.load(decoder, model.architecture, model.weights)
        weights.freeze(decoder, frozen)
        self._trainer = Trainer(model.architecture, decoder, config.optimizer, group.size)

    def step(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        rate: float,
        documents: np.ndarray | None = None,
    ) -> np.ndarray:
        """One optimiser step on [rows, width]; gives its row of the history.

        Of several processes each takes its share of the rows. Raises StageFailed if loss or
        gradient is no finite number.
        """
        share = len(inputs) // self._group.size
        first = share * self._group.rank
        size = self._config.batch.per_device_size or share
        micro = []
        for begin in range(first, first + share, size):
            part = slice(begin, begin + size)
            apart = None if documents is None else documents[part]
            micro.append(Batch(inputs[part], targets[part], apart))
        result = self._trainer.step(micro, rate)
        if not result.applied:
            raise StageFailed(
                f"loss {result.loss} or gradient norm {result.gradient_norm} is not finite; "
                f"a learning rate below {self._config.optimizer.learning_rate} may hold"
            )
        return np.array([result.loss, result.tokens, result.gradient_norm, rate])

    def pairs(self) -> dict[str, Pair]:
        """The adapter as it is now, empty without one."""
        return weights.read_adapter_tensors(self._decoder)

    def trained_weights(self) -> dict[str, np.ndarray]:
        """The base's tensors that learn, by Hugging Face name, as they are now."""
        return {}

    def take(self, pairs: Mapping[str, Pair], tensors: Mapping[str, np.ndarray]) -> None:
        """Give what learns these values."""
        raise NotImplementedError

    def state(self, history: np.ndarray) -> State:
        """Everything needed to go on from here."""
        means, squares = self._trainer.state()
        return State(
            len(history),
            self._trainer.updates,
            self.pairs(),
            means,
            squares,
            history,
            self.trained_weights(),
        )

    def go_on(self, state: State) -> None:
        """Take up a saved state."""
        self.take(state.tensors, state.weights)
        self._trainer.set_state(dict(state.means), dict(state.squares), state.updates)


class AdapterTrainer(_Trained):
    """A frozen base with an adapter that learns, from the values of `start` if given."""

    def __init__(
        self,
        model: HFModel,
        config: FinetuneConfig,
        start: Adapter | None = None,
        group: Group = Group(),  # noqa: B008  (frozen)
    ):
        runtime.start(config.device, config.seed)
        spec = chosen_spec(config.lora, start)
        shapes = spec.shapes(model.architecture)
        lora = Lora({module: (spec.rank_of(module), spec.scaling_of(module)) for module in shapes})
        frozen = {slot.parameter for slot in weights.slots(model.architecture)}
        super().__init__(model, config, Decoder(model.architecture, lora), frozen, group)
        self.set_tensors(dict(start.tensors) if start else initial_adapter(shapes, config.seed))

    def tensors(self) -> dict[str, Pair]:
        """The adapter as it is now: module name -> (A, B)."""
        return self.pairs()

    def set_tensors(self, tensors: Mapping[str, Pair]) -> None:
        """Give the adapter these values."""
        weights.load_adapter(self._decoder, tensors)

    def take(self, pairs: Mapping[str, Pair], tensors: Mapping[str, np.ndarray]) -> None:
        self.set_tensors(pairs)


class WeightTrainer(_Trained):
    """All weights learn, or those of the last layers."""

    def __init__(
        self,
        model: HFModel,
        config: FinetuneConfig,
        group: Group = Group(),  # noqa: B008  (frozen)
    ):
        runtime.start(config.device, config.seed)
        shape = model.architecture
        count = config.last_layers
        self._learning = {
            slot.hf_name
            for slot in weights.slots(shape)
            if count is None or _layer_of(slot.hf_name) >= shape.layers - count
        }
        frozen = {s.parameter for s in weights.slots(shape) if s.hf_name not in self._learning}
        super().__init__(model, config, Decoder(shape), frozen, group)

    def trained_weights(self) -> dict[str, np.ndarray]:
        found = weights.read_base(self._decoder, self._architecture)
        return {name: found[name] for name in found if name in self._learning}

    def take(self, pairs: Mapping[str, Pair], tensors: Mapping[str, np.ndarray]) -> None:
        held = weights.read_base(self._decoder, self._architecture)
        weights.load(self._decoder, self._architecture, {**held, **tensors})


def _layer_of(name: str) -> int:
    """Number of the layer that a tensor stands in; -1 for embedding, head and last norm."""
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def train(
    model: HFModel,
    config: FinetuneConfig,
    batches: Batches,
    steps: int,
    work: Path,
    start: Adapter | None = None,
    group: Group = Group(),  # noqa: B008  (frozen)
) -> State:
    """Train from the last saved state, or from the start. Gives where it ended.

    SIGTERM and Ctrl-C end it after the step at hand, whose state is saved first. Of several
    processes the first alone writes and listens.
    """
    trainer: _Trained
    if config.method == "lora":
        trainer = AdapterTrainer(model, config, start, group)
    else:
        trainer = WeightTrainer(model, config, group)
    history = np.zeros((0, 4))
    saved = load_state(work)
    if saved is not None:
        trainer.go_on(saved)
        history = saved.history
    if group.rank > 0:
        for step in range(len(history), steps):
            history = np.vstack([history, _step(trainer, config, batches, step, steps)])
        return trainer.state(history)
    if saved is not None:
        print(f"finetune: going on after step {saved.steps}", flush=True)
    print("finetune: compiling the training step", flush=True)
    progress = Progress("finetune", steps, "steps")
    with watching() as stop, MetricsFile(work / "logs" / "metrics.csv", history) as metrics:
        first = len(history)
        for step in range(first, steps):
            begin = time.perf_counter()
            with dying_at_once() if step == first else contextlib.nullcontext():
                row = _step(trainer, config, batches, step, steps)
            speed = batches.tokens(step) / (time.perf_counter() - begin)
            history = np.vstack([history, row])
            metrics.add(step + 1, row)
            values = {"loss": f"{row[0]:.4f}", "lr": f"{row[3]:.2e}"}
            if step > first:  # the first step compiles
                values["tokens/s"] = f"{speed:,.0f}"
            progress.update(step + 1, **values)
            if _due(stop, step + 1, config):
                save_state(work, trainer.state(history))
            if stop.requested:
                stop.raise_it()
    return trainer.state(history)


def _due(stop: StopRequest, done: int, config: FinetuneConfig) -> bool:
    return stop.requested or done % config.checkpoint.every == 0


def _step(
    trainer: _Trained, config: FinetuneConfig, batches: Batches, step: int, steps: int
) -> np.ndarray:
    rate = learning_rate(step + 1, steps, config.optimizer.learning_rate, config.schedule)
    try:
        return trainer.step(*batches.batch(step), rate, batches.documents(step))
    except StageFailed as error:
        raise StageFailed(f"step {step + 1}: {error}") from None
