"""The training loop: the engine's step on the adapter's parameters, and states to go on from."""

# First, since it prepares the environment before MindSpore is imported.
from stages.engine import runtime  # isort: skip

import contextlib
from pathlib import Path

import numpy as np

from artifacts.adapter import Adapter, Pair
from artifacts.errors import StageFailed
from artifacts.hf_model import HFModel
from stages.engine import weights
from stages.engine.model import Decoder, Lora
from stages.engine.settings import learning_rate
from stages.engine.stopping import dying_at_once, watching
from stages.engine.training import Batch, Trainer
from stages.finetune.config import FinetuneConfig
from stages.finetune.dataset import Batches
from stages.finetune.logs import MetricsFile
from stages.finetune.lora import chosen_spec, initial_adapter
from stages.finetune.resume import State, load_state, save_state
from stages.progress import Progress


class AdapterTrainer:
    """A frozen base with an adapter that learns, from the values of `start` if given."""

    def __init__(self, model: HFModel, config: FinetuneConfig, start: Adapter | None = None):
        runtime.start(config.device, config.seed)
        self._config, self._architecture = config, model.architecture
        spec = chosen_spec(config.lora, start)
        modules = spec.shapes(model.architecture)
        lora = Lora({module: (spec.rank_of(module), spec.scaling_of(module)) for module in modules})
        self._decoder = Decoder(model.architecture, lora)
        weights.load(self._decoder, model.architecture, model.weights)
        weights.freeze(
            self._decoder, {slot.parameter for slot in weights.slots(self._architecture)}
        )
        self.set_tensors(dict(start.tensors) if start else initial_adapter(modules, config.seed))
        self._trainer = Trainer(model.architecture, self._decoder, config.optimizer)

    def tensors(self) -> dict[str, Pair]:
        """The adapter as it is now: module name -> (A, B)."""
        return weights.read_adapter_tensors(self._decoder)

    def set_tensors(self, tensors: dict[str, Pair]) -> None:
        """Give the adapter these values."""
        weights.load_adapter(self._decoder, tensors)

    def step(self, inputs: np.ndarray, targets: np.ndarray, rate: float) -> np.ndarray:
        """One optimiser step on [examples, width]; gives its row of the history.

        Raises StageFailed if loss or gradient is no finite number.
        """
        size = self._config.batch.per_device_size or len(inputs)
        micro = [
            Batch(inputs[begin : begin + size], targets[begin : begin + size])
            for begin in range(0, len(inputs), size)
        ]
        result = self._trainer.step(micro, rate)
        if not result.applied:
            raise StageFailed(
                f"loss {result.loss} or gradient norm {result.gradient_norm} is not finite; "
                f"a learning rate below {self._config.optimizer.learning_rate} may hold"
            )
        return np.array([result.loss, result.tokens, result.gradient_norm, rate])

    def state(self, history: np.ndarray) -> State:
        """Everything needed to go on from here."""
        means, squares = self._trainer.state()
        return State(len(history), self._trainer.updates, self.tensors(), means, squares, history)

    def go_on(self, state: State) -> None:
        """Take up a saved state."""
        self.set_tensors(dict(state.tensors))
        self._trainer.set_state(dict(state.means), dict(state.squares), state.updates)


def train(
    model: HFModel,
    config: FinetuneConfig,
    batches: Batches,
    steps: int,
    work: Path,
    start: Adapter | None = None,
) -> tuple[dict[str, Pair], np.ndarray]:
    """Train from the last saved state, or from the start. Gives the adapter and its history.

    SIGTERM and Ctrl-C end it after the step at hand, whose state is saved first.
    """
    trainer = AdapterTrainer(model, config, start)
    history = np.zeros((0, 4))
    saved = load_state(work)
    if saved is not None:
        trainer.go_on(saved)
        history = saved.history
        print(f"finetune: going on after step {saved.steps}", flush=True)
    print("finetune: compiling the training step", flush=True)
    progress = Progress("finetune", steps, "steps")
    with watching() as stop, MetricsFile(work / "logs" / "metrics.csv", history) as metrics:
        first = len(history)
        for step in range(first, steps):
            rate = learning_rate(step + 1, steps, config.optimizer.learning_rate, config.schedule)
            with dying_at_once() if step == first else contextlib.nullcontext():
                row = _step(trainer, batches, step, rate)
            history = np.vstack([history, row])
            metrics.add(step + 1, row)
            progress.update(step + 1, loss=f"{row[0]:.4f}", lr=f"{rate:.2e}")
            if stop.requested or (step + 1) % config.checkpoint.every == 0:
                save_state(work, trainer.state(history))
            if stop.requested:
                stop.raise_it()
    return trainer.tensors(), history


def _step(trainer: AdapterTrainer, batches: Batches, step: int, rate: float) -> np.ndarray:
    try:
        return trainer.step(*batches.batch(step), rate)
    except StageFailed as error:
        raise StageFailed(f"step {step + 1}: {error}") from None
