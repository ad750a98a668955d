"""Networks in training whose passes, losses and epochs are compiled; see core.c."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import Any

import numpy as np

from flame_rl.learner.compiled import library as core
from flame_rl.learner.compiled.library import COLUMNS, NUMBERS, address
from flame_rl.learner.training.epoch import Epoch, StepConfig
from flame_rl.learner.training.network import CompiledLoss, Gradient, Loss, Network, Samples
from flame_rl.learner.training.trained import Adam
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.system.signals import end_if_stopped

ACTIVATIONS = {"": 0, "tanh": 1, "relu": 2, "silu": 3}
# The columns that each kind of head takes besides inputs, in the order of core.c; those that
# a loss may take; and what those of action values are called in replay.
_HEAD_COLUMNS = {"values": (), "gaussian": ("actions",), "categorical": ("actions", "action_masks")}
_LOSS_COLUMNS = "advantages", "log_probs", "ratios", "targets"
_TRANSITION_COLUMNS = {
    "inputs": "observations",
    "next_inputs": "next_observations",
    "action_masks": "next_action_masks",
}
LOSSES = {"policy_gradient": 0, "clipped": 1, "squared_error": 2}
# Numbers of a workspace that stays in a core's own cache, and the least rows of a slice, so that
# transposing weights costs little.
_WORKSPACE, _LEAST_ROWS = 1 << 17, 64
# Samples times parameters of one call, which takes about a tenth of a second; between two calls
# the user may stop the run.
_ONE_CALL = 1 << 30


@dataclass(frozen=True)
class CompiledHead:
    """What a loss sees of the output.

    Attributes:
        kind: values, gaussian or categorical.
        choices: int32 [F], of a categorical distribution the number of choices of each factor.
        scale: float32 [], a factor of values; None: 1.
    """

    kind: str
    choices: np.ndarray | None = None
    scale: np.ndarray | None = None


class CompiledNetwork(Network):
    """See `flame_rl.learner.training.network.Network`."""

    remembers = False
    frames = 1
    parallel = True
    compiled = True

    def __init__(
        self,
        layers: Sequence[dict[str, float]],
        head: CompiledHead,
        parameters: np.ndarray,
        select: np.ndarray | None = None,
        normalizer: NormalizeLayer | None = None,
    ) -> None:
        """
        Args:
            layers: the fields of each `Layer`, from the inputs to the output.
            head: what a loss sees.
            parameters: all of them, float32 [P], which change in place.
            select: the numbers of an observation that the first layer gets; None: all.
            normalizer: of observations, whose arrays change in place; None: taken as they are.
        """
        self._library = core.library()
        self._layers = (core.Layer * len(layers))(*(core.Layer(**layer) for layer in layers))
        self._head, self._parameters = head, parameters
        self._select, self._normalizer = select, normalizer
        self._inputs, self._outputs = self._layers[0].inputs, self._layers[-1].outputs
        factors = 1 if head.choices is None else len(head.choices)
        kind = list(_HEAD_COLUMNS).index(head.kind)
        last = core.Head(kind, factors, *map(address, (head.choices, head.scale)))
        # Types and widths of the columns that differ from one float32 in a row.
        self._types = {
            "inputs": (np.float32, self._inputs),
            "next_inputs": (np.float32, self._inputs),
            "actions": (np.int32, factors),
            "action_masks": (np.uint8, -(-self._outputs // 8)),
        }
        if head.kind == "gaussian":
            self._types["actions"] = np.float32, self._outputs
        self._network = core.Network(len(layers), cast(self._layers, POINTER(core.Layer)), last)
        per_row = sum(2 * each.outputs for each in self._layers) + 2 * max(
            max(each.inputs, each.outputs) for each in self._layers
        )
        self.slice_rows = max(_LEAST_ROWS, _WORKSPACE // per_row)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        if self._normalizer is None:
            return np.asarray(observations)
        return self._normalizer.normalize(np.asarray(observations, np.float32))

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        return self.forward(samples).outputs

    def forward(self, samples: Samples) -> CompiledPass:
        rows, names = len(samples["inputs"]), _HEAD_COLUMNS[self._head.kind]
        columns, workspace = self._columns(samples, names, rows), self._workspace(rows)
        shape = (rows,) if names or self._head.scale is not None else (rows, self._outputs)
        outputs = [np.empty(shape, np.float32) for _ in range(1 + bool(names))]
        arguments = self._network, self._parameters, columns, rows, workspace
        # Values have no entropies.
        self._library.forward(*arguments, *(*outputs, None)[:2])
        return CompiledPass(self, arguments, tuple(outputs), samples["inputs"].shape[-1])

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        if not isinstance(loss, CompiledLoss):
            return super().differentiate(loss, samples, gradient)
        rows, numbers = len(samples["inputs"]), np.zeros(len(NUMBERS))
        names = *_HEAD_COLUMNS[self._head.kind], *_LOSS_COLUMNS
        columns, workspace = self._columns(samples, names, rows), self._workspace(rows)
        gradient.fill(0)
        network = self._network, self._parameters, _loss(loss)
        self._library.add_gradient(*network, columns, rows, workspace, gradient, numbers)
        return dict(zip(loss.numbers, numbers.tolist(), strict=False))

    def run_epoch(
        self, loss: CompiledLoss, adam: Adam, epoch: Epoch, config: StepConfig
    ) -> list[dict[str, float]]:
        """See `flame_rl.learner.training.epoch.train_epoch`."""
        names = *_HEAD_COLUMNS[self._head.kind], *_LOSS_COLUMNS
        columns = self._columns(epoch.columns | {"inputs": epoch.inputs}, names, epoch.steps)
        rows, order = (np.ascontiguousarray(each, np.int64) for each in (epoch.rows, epoch.order))
        slice_rows = self._rows_of_slice(epoch.largest)
        sizes = epoch.steps, epoch.count, slice_rows
        minibatches = core.Epoch(columns, address(rows), address(order), *sizes)
        numbers = np.zeros((epoch.count, len(NUMBERS) + 1))
        scratch = np.empty(slice_rows * sum(columns.bytes) + 64 * len(COLUMNS), np.uint8)
        factors = np.array(adam.factors(epoch.count, config.learning_rate))
        structs = self._network, _loss(loss), minibatches, _optimizer(adam, config)
        arrays = factors, self._workspace(slice_rows), scratch, numbers
        done = 0
        for begin, end in _calls(epoch.count, epoch.largest, adam):
            taken = self._library.epoch(*structs, begin, end, *arrays)
            adam.steps += taken
            done = begin + taken
            if done < end:
                done += 1  # one that exceeded the limit has numbers, too
                break
        names = (*loss.numbers, "gradient_norm")
        kept = [*range(len(loss.numbers)), len(NUMBERS)]
        return [dict(zip(names, row, strict=True)) for row in numbers[:done, kept].tolist()]

    def q_steps(
        self, samples: Samples, adam: Adam, target: core.Target, config: StepConfig
    ) -> dict[str, np.ndarray]:
        """Gradient steps down `q_loss`, on K minibatches; the target network follows.

        Args:
            samples: as `flame_rl.learner.off_policy.replay.views.n_step` returns them, but
                [K, B, ...]; perhaps with "weights".
            adam: of the network, whose output is [B, A].
            target: the network of the targets: where its parameters are, which change in place;
                after how many gradient steps it moves, and by which share; and whether the network
                in training chooses the actions that it values.
            config: has no KL limit.

        Returns:
            The numbers of `q_loss`, [K, B] each.
        """
        count, rows = samples["rewards"].shape
        names = {name: name for name in COLUMNS} | _TRANSITION_COLUMNS
        flat = {n: samples[o].reshape(count * rows, -1) for n, o in names.items() if o in samples}
        slice_rows = self._rows_of_slice(rows)
        columns = self._columns(flat, flat, count * rows)
        minibatches = core.Epoch(columns, None, None, count * rows, count, slice_rows)
        factors = np.array(adam.factors(count, config.learning_rate))
        numbers = np.empty((count, 3, rows), np.float32)
        structs = self._network, minibatches, _optimizer(adam, config), target
        scratch = np.empty(2 * slice_rows, np.int64)
        arrays = factors, self._workspace(slice_rows), scratch, numbers
        for begin, end in _calls(count, rows, adam):
            self._library.q_steps(*structs, adam.steps - begin, begin, end, *arrays)
            adam.steps += end - begin
        return dict(zip(("loss", "td_error", "value"), numbers.swapaxes(0, 1), strict=True))

    def _rows_of_slice(self, rows: int) -> int:
        """How many of these rows a slice has: slices of even size, none so small that transposing
        weights takes most of its time."""
        return -(-rows // -(-rows // self.slice_rows))

    def _workspace(self, rows: int) -> np.ndarray:
        return np.empty(self._library.workspace_size(self._network, rows), np.float32)

    def _columns(self, samples: Samples, names: Collection[str], rows: int) -> core.Samples:
        """The inputs and the columns of these names, where they are there; the arrays that the
        structure points to are its attribute `arrays`."""
        columns = core.Samples()
        columns.arrays = []
        for place, name in enumerate(COLUMNS):
            if name not in samples or name not in ("inputs", *names):
                continue
            column = samples[name]
            if self._select is not None and name in ("inputs", "next_inputs"):
                column = np.asarray(column).take(self._select, axis=-1)
            dtype, width = self._types.get(name, (np.float32, 1))
            # The inputs of an epoch have rows of their own.
            array = _array(column, dtype, len(column) if name == "inputs" else rows, width)
            columns.arrays.append(array)
            columns.data[place], columns.bytes[place] = address(array), array[:1].nbytes
        return columns


@dataclass(frozen=True)
class CompiledPass:
    """See `flame_rl.learner.training.network.Pass`; it can go back once. `arguments` are those of
    core.c's `forward`; `width` is that of the samples' inputs."""

    network: CompiledNetwork
    arguments: tuple[Any, ...]
    outputs: tuple[np.ndarray, ...]
    width: int

    def backward(self, gradients: tuple[Gradient, ...], gradient: np.ndarray) -> None:
        gradient.fill(0)
        self._back(gradients, gradient, None)

    def backward_inputs(self, gradients: tuple[Gradient, ...]) -> np.ndarray:
        network = self.network
        result = np.empty((len(self.outputs[0]), network._inputs), np.float32)
        self._back(gradients, None, result)
        if network._select is None:
            return result
        whole = np.zeros((len(result), self.width), np.float32)
        np.add.at(whole, (slice(None), network._select), result)
        return whole

    def _back(self, gradients: tuple[Gradient, ...], *results: np.ndarray | None) -> None:
        of_outputs = [
            _array(np.broadcast_to(each, output.shape), np.float32, *output.shape)
            for each, output in zip(gradients, self.outputs, strict=True)
        ]
        self.network._library.backward(*self.arguments, *(*of_outputs, None)[:2], *results)


def _loss(loss: CompiledLoss) -> core.Loss:
    return core.Loss(LOSSES[loss.kind], loss.clip_range, loss.entropy_coefficient)


def _optimizer(adam: Adam, config: StepConfig) -> core.Optimizer:
    arrays = adam.parameters, adam.gradient, *adam.sums
    limits = adam.parameters.size, config.max_grad_norm, config.max_kl
    return core.Optimizer(*map(address, arrays), *limits)


def _calls(count: int, rows: int, adam: Adam) -> Iterator[tuple[int, int]]:
    """The first minibatch of each call and the one after its last, of `count` minibatches of `rows`
    samples. Raises Interrupted if the user asks to stop."""
    at_once = max(1, _ONE_CALL // (rows * adam.parameters.size))
    for begin in range(0, count, at_once):
        end_if_stopped()
        yield begin, min(begin + at_once, count)


def _array(array: np.ndarray, dtype: type, *shape: int) -> np.ndarray:
    """The array as core.c takes it. Raises ValueError for another size, which C does not see."""
    return np.ascontiguousarray(array, dtype).reshape(shape)
