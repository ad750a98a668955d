"""Networks in training whose passes, losses and epochs are compiled; see core.c."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from flame_rl.learner.compiled import library as core
from flame_rl.learner.compiled.library import COLUMNS, NUMBERS, address
from flame_rl.learner.training.epoch import Epoch, StepConfig
from flame_rl.learner.training.network import CompiledLoss, Gradient, Loss, Network, Samples
from flame_rl.learner.training.trained import Adam
from flame_rl.modules.networks import (
    ActionValueNetwork,
    CategoricalPolicy,
    CriticNetwork,
    GaussianPolicy,
    PolicyNetwork,
    ValueNetwork,
)
from flame_rl.modules.observations import ObservationNormalizer
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.system.signals import end_if_stopped

# The names and the numbers of core.c.
ACTIVATIONS = {"tanh": 1, "relu": 2, "silu": 3}
VALUES, GAUSSIAN, CATEGORICAL = range(3)
LOSSES = {"policy_gradient": 0, "clipped": 1, "squared_error": 2, "q_learning": 3}
# The networks that are compiled, of exactly these types, and what a loss sees of each.
COMPILED_TYPES: dict[type[nn.Module], int] = {
    **dict.fromkeys((PolicyNetwork, ActionValueNetwork, CriticNetwork, ValueNetwork), VALUES),
    CategoricalPolicy: CATEGORICAL,
    GaussianPolicy: GAUSSIAN,
}
# The columns that each kind of head takes besides inputs, and those that a loss may take.
_HEAD_COLUMNS = (), ("actions",), ("actions", "action_masks")
_LOSS_COLUMNS = "advantages", "log_probs", "kl_weights", "targets"
# The columns of deep Q-learning that have other names in replay.
_TRANSITION_COLUMNS = {
    "inputs": "observations",
    "targets": "rewards",
    "next_inputs": "next_observations",
    "action_masks": "next_action_masks",
}
# Numbers of a workspace that stays in a core's own cache, and the least rows of a slice, so that
# transposing weights costs little.
_WORKSPACE, _LEAST_ROWS = 1 << 17, 64
# Samples times parameters of one call, which takes about a tenth of a second; between two calls
# the user may stop the run.
_ONE_CALL = 1 << 30


class CompiledNetwork(Network):
    """See `flame_rl.learner.training.network.Network`."""

    compiled = True

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[dict[str, float]],
        first_parameter: np.ndarray,
        select: np.ndarray | None = None,
    ) -> None:
        """`module` is of a type in `COMPILED_TYPES`. `first_parameter` is where all its parameters
        begin, which lie one behind another (`flat_parameters`) and change in place, as its
        normaliser does. `layers` are the fields of each `Layer`, and `select` the numbers of an
        observation that the first one gets; None: all."""
        self._library, self._parameters, self._select = core.library(), first_parameter, select
        self._layers = (core.Layer * len(layers))(*(core.Layer(**layer) for layer in layers))
        self._inputs, self._outputs = layers[0]["inputs"], layers[-1]["outputs"]
        self._normalizer = None
        if type(module.normalizer) is ObservationNormalizer:
            self._normalizer = NormalizeLayer(**module.normalizer.views())
        kind = COMPILED_TYPES[type(module)]
        self._choices = np.array(module.choices if kind == CATEGORICAL else (0,), np.int32)
        self._scale = module.scale.numpy() if type(module) is ValueNetwork else None
        self._columns_of_head = ("inputs", *_HEAD_COLUMNS[kind])
        head = core.Head(kind, len(self._choices), address(self._choices), address(self._scale))
        self._network = core.Network(len(layers), cast(self._layers, POINTER(core.Layer)), head)
        # Types and widths of the columns that differ from one float32 in a row.
        real = kind == GAUSSIAN
        self._types = {
            "inputs": (np.float32, self._inputs),
            "next_inputs": (np.float32, self._inputs),
            "actions": (np.float32, self._outputs) if real else (np.int32, len(self._choices)),
            "action_masks": (np.uint8, -(-self._outputs // 8)),
        }
        per_row = sum(2 * each.outputs for each in self._layers) + 2 * max(
            max(each.inputs, each.outputs) for each in self._layers
        )
        self.slice_rows = max(_LEAST_ROWS, _WORKSPACE // per_row)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        if self._normalizer is None:
            return np.asarray(observations)
        return self._normalizer.normalize(np.asarray(observations, np.float32))

    def forward(self, samples: Samples) -> CompiledPass:
        rows, policy = len(samples["inputs"]), len(self._columns_of_head) > 1
        columns = self._columns(samples, self._columns_of_head, rows)
        shape = (rows,) if policy or self._scale is not None else (rows, self._outputs)
        outputs = [np.empty(shape, np.float32) for _ in range(1 + policy)]
        arguments = self._network, self._parameters, columns, rows, self._workspace(rows)
        # Values have no entropies.
        self._library.forward(*arguments, *(*outputs, None)[:2])
        return CompiledPass(self, arguments, tuple(outputs), samples["inputs"].shape[-1])

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        if not isinstance(loss, CompiledLoss):
            return super().differentiate(loss, samples, gradient)
        rows, totals = len(samples["inputs"]), np.zeros(NUMBERS)
        columns = self._columns(samples, (*self._columns_of_head, *_LOSS_COLUMNS), rows)
        numbers = np.empty((rows, NUMBERS), np.float32)
        gradient.fill(0)
        arguments = self._network, self._parameters, _loss(loss), columns, rows
        results = self._workspace(rows), gradient, numbers, totals
        self._library.add_gradient(*arguments, *results)
        return dict(zip(loss.numbers, totals.tolist(), strict=False))

    def run_epoch(
        self, loss: CompiledLoss, adam: Adam, epoch: Epoch, config: StepConfig
    ) -> list[dict[str, float]]:
        """See `flame_rl.learner.training.epoch.train_epoch`."""
        names = *self._columns_of_head, *_LOSS_COLUMNS
        _, means = self._steps((_loss(loss), None), adam, epoch, names, config)
        kept = [*range(len(loss.numbers)), NUMBERS]
        names = *loss.numbers, "gradient_norm"
        return [dict(zip(names, row, strict=True)) for row in means[:, kept].tolist()]

    def q_steps(
        self, samples: Samples, adam: Adam, target: core.Target, config: StepConfig
    ) -> dict[str, np.ndarray]:
        """Gradient steps down `q_loss`, on K minibatches; the target network follows. Samples are
        those of `flame_rl.learner.off_policy.replay.views.n_step`, but [K, B, ...], perhaps with
        "weights"; the network's output is [B, A]. Returns the numbers of `q_loss`, [K, B] each."""
        count, rows = samples["rewards"].shape
        names = {name: name for name in COLUMNS} | _TRANSITION_COLUMNS
        flat = {n: samples[o].reshape(count * rows, -1) for n, o in names.items() if o in samples}
        every = np.arange(count * rows)
        epoch = Epoch(flat["inputs"], every, flat, every, count)
        loss = core.Loss(LOSSES["q_learning"])
        numbers, _ = self._steps((loss, target), adam, epoch, flat, config)
        by_name = numbers.T.copy().reshape(NUMBERS, count, rows)
        return dict(zip(("loss", "td_error", "value"), by_name, strict=True))

    def _steps(
        self,
        loss: tuple[core.Loss, core.Target | None],
        adam: Adam,
        epoch: Epoch,
        names: Collection[str],
        config: StepConfig,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradient steps on an epoch's minibatches, whose columns of these `names` are used.
        Returns the loss's numbers of each step, in the epoch's order, float32 [steps, NUMBERS]; and
        for each minibatch, up to one that exceeded the KL limit, their means and the gradient's
        norm, float64 [minibatches, NUMBERS + 1]. Raises Interrupted if the user asks to stop."""
        columns = self._columns(epoch.columns | {"inputs": epoch.inputs}, names, epoch.steps)
        # Slices of even size, none so small that transposing weights takes most of its time.
        slice_rows = -(-epoch.largest // -(-epoch.largest // self.slice_rows))
        numbers = np.empty((epoch.steps, NUMBERS), np.float32)
        means = np.zeros((epoch.minibatch_count, NUMBERS + 1))
        arrays = [np.ascontiguousarray(each, np.int64) for each in (epoch.rows, epoch.order)]
        scratch = np.empty(slice_rows * sum(columns.bytes) + 64 * len(COLUMNS), np.uint8)
        arrays += self._workspace(slice_rows), scratch, numbers, means
        sizes = epoch.steps, epoch.minibatch_count, slice_rows
        epoch_struct = core.Epoch(columns, *map(address, arrays), *sizes)
        factors = np.array(adam.factors(epoch.minibatch_count, config.learning_rate))
        state = adam.parameters, adam.gradient, *adam.moments, factors
        limits = config.max_grad_norm, config.max_kl
        optimizer = core.Optimizer(*map(address, state), adam.parameters.size, *limits)
        at_once = max(1, _ONE_CALL // (epoch.largest * adam.parameters.size))
        structs = self._network, *loss, epoch_struct, optimizer
        for begin in range(0, epoch.minibatch_count, at_once):
            end_if_stopped()
            end = min(begin + at_once, epoch.minibatch_count)
            taken = self._library.epoch(*structs, begin, end)
            adam.steps += taken
            if begin + taken < end:  # one that exceeded the limit has numbers, too
                return numbers, means[: begin + taken + 1]
        return numbers, means

    def _workspace(self, rows: int) -> np.ndarray:
        return np.empty(self._library.workspace_size(self._network, rows), np.float32)

    def _columns(self, samples: Samples, names: Collection[str], rows: int) -> core.Samples:
        """The columns of these names, where they are there. `arrays` on the structure keeps alive
        what it points to."""
        columns = core.Samples()
        columns.arrays = []
        for place, name in enumerate(COLUMNS):
            if name not in samples or name not in names:
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


def _array(array: np.ndarray, dtype: type, *shape: int) -> np.ndarray:
    """The array as core.c takes it. Raises ValueError for another size, which C does not see."""
    return np.ascontiguousarray(array, dtype).reshape(shape)
