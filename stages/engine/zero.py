"""ZeRO, first stage: the data processes divide AdamW's state (arXiv 1910.02054).

Every process holds all weights and gets all gradients; each updates one slice of them, and the
slices are put together again. The sums and the putting together are all-reduces, the latter of
slices padded with zeros: MindSpore's CPU collectives know no other within a group.
"""

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from stages.engine.groups import Mesh, summed
from stages.engine.optimizer import AdamW
from stages.engine.settings import OptimizerConfig


class ZeroAdamW(AdamW):
    """AdamW on this process's slice of all parameters laid end to end.

    Two such rows: parameters that decay, and those that do not. The weights must be loaded before
    this is made, or `refresh` called.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        config: OptimizerConfig,
        mesh: Mesh,
        counted: Sequence[bool] | None = None,
    ):
        assert mesh.data is not None
        self._group, self._place = mesh.data, mesh.place
        super().__init__(parameters, config, mesh.model, counted)
        self.shapes = [tuple(p.shape) for p in parameters]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.processes = mesh.place.layout.data
        self.row_all_reduce = ops.AllReduce(group=mesh.data)
        self.concat, self.cut, self.pick = ops.Concat(), ops.Slice(), ops.Gather()
        self.assign, self.depend = ops.Assign(), ops.Depend()
        # Tensors, not numbers: so all processes run the same graph.
        index = mesh.place.data
        self.index = Tensor(np.array([index], np.int32))
        self.own = Tensor(np.eye(self.processes, dtype=np.float32)[index].reshape(-1, 1))
        self.refresh()

    def _make_state(self) -> None:
        rows = [[i for i, d in enumerate(self.decays) if d == kind] for kind in (True, False)]
        self.rows = [row for row in rows if row]
        sizes = [int(np.prod(p.shape)) for p in self.weights]
        self.widths = [
            -(-sum(sizes[i] for i in row) // self._place.layout.data) for row in self.rows
        ]
        """Numbers of a slice of each row."""
        self.slices = self._zeros("adam_weight")
        self.means = self._zeros("adam_mean")
        self.squares = self._zeros("adam_square")

    def _zeros(self, name: str) -> ParameterTuple:
        return ParameterTuple(
            [
                Parameter(
                    Tensor(np.zeros(width, np.float32)), name=f"{name}.{i}", requires_grad=False
                )
                for i, width in enumerate(self.widths)
            ]
        )

    def row_numbers(self) -> list[int]:
        return [width * self.processes for width in self.widths]

    def refresh(self) -> None:
        """Take the own slices from the weights as they are."""
        self._set(self.slices, [p.asnumpy() for p in self.weights])

    def moments(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return self._whole(self.means), self._whole(self.squares)

    def set_moments(self, means: Sequence[np.ndarray], squares: Sequence[np.ndarray]) -> None:
        self._set(self.means, means)
        self._set(self.squares, squares)
        self.refresh()

    def _set(self, held: ParameterTuple, values: Sequence[np.ndarray]) -> None:
        for row, width, parameter in zip(self.rows, self.widths, held, strict=True):
            flat = np.zeros(width * self.processes, np.float32)
            joined = np.concatenate([np.asarray(values[i]).reshape(-1) for i in row])
            flat[: joined.size] = joined
            begin = self._place.data * width
            parameter.set_data(Tensor(flat[begin : begin + width].copy()))

    def _whole(self, held: ParameterTuple) -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for row, width, parameter in zip(self.rows, self.widths, held, strict=True):
            flat = np.zeros(width * self.processes, np.float32)
            begin = self._place.data * width
            flat[begin : begin + width] = parameter.asnumpy()
            flat = summed(flat, self._group)
            begin = 0
            for i in row:
                found[i] = flat[begin : begin + self.sizes[i]].reshape(self.shapes[i])
                begin += self.sizes[i]
        return [found[i] for i in range(len(self.sizes))]

    def update(
        self,
        gradients: Any,
        scale: Tensor,
        rate: Tensor,
        beta1: Tensor,
        beta2: Tensor,
        epsilon: Tensor,
        decay: Tensor,
    ) -> None:
        """The kernel on the own slice of each row, which then goes to all."""
        for r in range(len(self.rows)):
            row, width = self.rows[r], self.widths[r]
            flat: Any = ()
            filled = 0
            for i in row:
                flat = (*flat, ops.reshape(gradients[i], (-1,)))
                filled = filled + self.sizes[i]
            if filled < width * self.processes:
                flat = (*flat, ops.zeros((width * self.processes - filled,), mindspore.float32))
            joined = self.concat(flat) if len(flat) > 1 else flat[0]
            slices = ops.reshape(joined, (self.processes, width))
            gradient = ops.reshape(self.pick(slices, self.index, 0), (width,))
            done = self.kernel(
                self.slices[r],
                self.means[r],
                self.squares[r],
                rate,
                beta1,
                beta2,
                epsilon,
                decay if self.decays[row[0]] else self.zero,
                self.scaled(gradient, scale),
            )
            mine = ops.reshape(self.depend(self.slices[r], done), (1, width))
            whole = ops.reshape(self.row_all_reduce(self.own * mine), (-1,))
            begin = 0
            for i in row:
                part = self.cut(whole, (begin,), (self.sizes[i],))
                self.assign(self.weights[i], ops.reshape(part, self.shapes[i]))
                begin = begin + self.sizes[i]
