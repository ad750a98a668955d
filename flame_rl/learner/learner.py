"""The learner around any algorithm: policy versions, random numbers, saved state, digests, and the
refusal of updates that are not finite."""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import Generator
from torch import nn

from flame_rl.learner.rewards import RAW, Rewards
from flame_rl.learner.state import (
    Metrics,
    Stateful,
    arrays_digest,
    count_in,
    part_of,
    refuse_unless_finite,
)
from flame_rl.learner.training.choose import notices_of
from flame_rl.learner.training.device import reproducible
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Episodes, PolicySnapshot


class Algorithm(Protocol):
    """An algorithm, as `Learner` uses it; one inherits this and overrides what differs.

    Attributes:
        parts: everything with state that the next update depends on, by name. The torch modules
            among them are networks; their weights are digested and written to weights.safetensors.
            A replay memory is named `REPLAY`, see state.py.
        metrics: names of the numbers that `update` may return, in the order of metrics.csv.
        notices: what a person should know when a run begins.
        demonstrations: what else it learns from, see demonstrations/files.py.
        lag: by how many updates the policy that collects is older than the latest one.
    """

    demonstrations: Any = None

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]: ...

    @property
    def metrics(self) -> tuple[str, ...]: ...

    @property
    def notices(self) -> tuple[str, ...]:
        return ()

    @property
    def lag(self) -> int:
        return 0

    def snapshot(self) -> PolicySnapshot:
        """The latest policy. The learner stamps the version."""

    def collector_snapshot(self) -> PolicySnapshot:
        """The policy that collects the next iteration: the latest, or one `lag` updates older."""
        return self.snapshot()

    def update(self, episodes: Episodes, generator: Generator, progress: float) -> Metrics:
        """Learn from an iteration's episodes, or fragments of some, which are sorted by index.

        `generator` is seeded by the run's seed and the number of updates so far; `progress` is the
        share of the run that is done, above 1 in some resumed runs. Returns values of `metrics`, or
        of some of them; none in an iteration without an update.
        """

    def close(self) -> None:
        """Close what is open besides files, such as an environment. May be called twice."""


class Learner:
    """Updates a policy by an algorithm; everything the next update depends on is in `state_dict`.
    `algorithm`: see `Algorithm`. `rewards`: held for run/iteration.py, which shapes episodes.
    `networks_file`: the SHA-256 of the file that made the networks."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, rewards: Rewards = RAW) -> None:
        self.algorithm, self.rewards = algorithm, rewards
        self._seed, self._device = config.experiment.seed, config.execution.device
        self._updates, self.networks_file = 0, ""
        self._parameters = _parameters_in(self.parts)

    @property
    def notices(self) -> list[str]:
        """What a person should know when a run begins, also where networks train slowly. Raises
        UsageError where demonstrations cannot be used."""
        notices = list(self.algorithm.notices)
        if (demonstrations := self.algorithm.demonstrations) is not None:
            notices.append(demonstrations.notice)
        return notices if self._device == "cuda" else notices + notices_of(modules_in(self.parts))

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        """The algorithm's parts, by name."""
        return self.algorithm.parts

    def snapshot(self) -> PolicySnapshot:
        """The latest policy for the actors; its version is the number of updates so far."""
        return replace(self.algorithm.snapshot(), version=self._updates)

    def collector_snapshot(self) -> PolicySnapshot:
        """The policy that collects the next iteration."""
        version = max(0, self._updates - self.algorithm.lag)
        return replace(self.algorithm.collector_snapshot(), version=version)

    def update(self, episodes: Episodes, progress: float = 0.0) -> Metrics:
        """Improve the policy by episodes or fragments, which `rewards` made of those that the
        latest `collector_snapshot` played; `progress`: the share of the run that is done, 0 to 1.

        Returns the algorithm's metrics by name. Raises RunError if a metric or a part of the state
        became NaN or infinite, UsageError if a module has drawn torch's random numbers or replaced
        a parameter: the state is then that of a broken update, which the caller undoes.
        """
        # Spawn keys of episodes have three numbers or more, (iteration, index, …), so no stream of
        # theirs is this one; see `flame_rl.actor.randomness`.
        sequence = np.random.SeedSequence(self._seed, spawn_key=(self._updates,))
        generator = np.random.default_rng(sequence)
        # NumPy need not warn of what `refuse_unless_finite` refuses.
        with np.errstate(over="ignore", invalid="ignore"), reproducible(self._device):
            metrics = self.algorithm.update(episodes, generator, progress)
        self._refuse_replaced_parameters()
        refuse_unless_finite(metrics, self.state_dict())
        self._updates += 1
        return metrics

    def _refuse_replaced_parameters(self) -> None:
        """Raise UsageError for a parameter that is no longer the one that the optimiser moves."""
        now, before = _parameters_in(self.parts), self._parameters
        for name in now.keys() | before.keys():
            own, other = now.get(name, (None, 0)), before.get(name, (None, 0))
            if own[0] is not other[0] or own[1] != other[1]:
                raise UsageError(
                    f"{name} was replaced during an update, and the optimiser has the old one; "
                    "make layers in the constructor, and change a parameter in place by copy_"
                )

    def weights(self) -> dict[str, np.ndarray]:
        """The weights of all networks by name; the next update changes them."""
        return _arrays_of(modules_in(self.parts))

    def weights_digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights."""
        return arrays_digest(self.weights())

    def state_dict(self) -> dict[str, np.ndarray]:
        """All that the next update depends on, by name; the next update changes it."""
        return _arrays_of(self.parts) | {"updates": np.array(self._updates)}

    def load_state_dict(self, state: dict[str, np.ndarray], undo: bool = False) -> None:
        """Copy what `state_dict` returned. Raises as `Stateful.load_state_dict`; with `undo`, not
        for layers that an update has added or deleted."""
        for name, part in self.parts.items():
            load_part(part, part_of(state, name), strict=not undo)
        self._updates = count_in(state, "updates")


def modules_in(parts: dict[str, Stateful | nn.Module]) -> dict[str, nn.Module]:
    """The modules among the parts."""
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}


def state_of(part: Stateful | nn.Module) -> dict[str, np.ndarray]:
    """The state of a part by name; of a module, views of its tensors."""
    state = part.state_dict()
    if isinstance(part, nn.Module):
        return {name: tensor.numpy() for name, tensor in state.items()}
    return state


def load_part(
    part: Stateful | nn.Module, state: dict[str, np.ndarray], strict: bool = False
) -> None:
    """Copy what `state_of` returned, unless `strict` also if the layers are no longer the same:
    an update that changed them is refused at its end. Raises as `Stateful.load_state_dict`."""
    if isinstance(part, nn.Module):
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        part.load_state_dict(tensors, strict)
    else:
        part.load_state_dict(state)


def _parameters_in(parts: dict[str, Stateful | nn.Module]) -> dict[str, tuple[nn.Parameter, int]]:
    """Each parameter of the networks and where its numbers are, by name."""
    return {
        f"{part}.{name}": (parameter, parameter.data_ptr())
        for part, module in modules_in(parts).items()
        for name, parameter in module.named_parameters()
    }


def _arrays_of(parts: dict[str, Stateful | nn.Module]) -> dict[str, np.ndarray]:
    return {
        f"{name}.{own}": array
        for name, part in parts.items()
        for own, array in state_of(part).items()
    }
