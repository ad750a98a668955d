"""The interface between update.py and an algorithm with a replay memory."""

from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator
from torch import nn

from flame_rl.learner.off_policy.replay.views import StoredSteps
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.system.errors import UsageError
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Column, Episodes


class GradientStep(Protocol):
    """An algorithm's networks, and its gradient step. An algorithm inherits this and overrides what
    differs. Its constructor takes the settings and the environment's description.

    Attributes:
        policy: the network that acts; a module as in model.py.
        parts, metrics: see `Algorithm`; the numbers are those of `step`.
        actions: the kind of actions that the algorithm supports.
        remembers: whether its networks may have a memory.
        demonstrable: whether it may learn from what an unknown policy has done.
        columns: the columns that `record` adds to episodes, stored for every step.
    """

    policy: nn.Module
    parts: dict[str, Stateful | nn.Module]
    metrics: tuple[str, ...]
    actions: Literal["any", "discrete", "continuous"] = "any"
    remembers: bool = False
    demonstrable: bool = True
    columns: tuple[Column, ...] = ()

    def exploration(self, env_steps: int) -> dict[str, float]:
        """Numbers of the policy's head by name, such as "epsilon", after `env_steps` env steps of
        the run; the others are as the policy exports them."""
        return {}

    def record(self, episodes: Episodes) -> Episodes:
        """The episodes with `columns` added, before they are stored; see `recorded`."""
        return episodes

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """The samples of the stored steps at these positions; see replay/views.py."""

    def step(self, samples: Samples, generator: Generator, decay: float) -> Numbers:
        """Take one gradient step on B samples, as `view` returns them; with "weights", float32 [B],
        where they were not drawn uniformly. `generator` is for random numbers of the step itself,
        `decay` the factor of the learning rates. Returns numbers by name, of any shape, among them
        "td_error", [B], absolute."""

    def steps(self, samples: Samples, generator: Generator, decay: float) -> Iterator[Numbers]:
        """`step` on K minibatches, [K, B, ...], one after another."""
        for place in range(len(samples["rewards"])):
            minibatch = {name: column[place] for name, column in samples.items()}
            yield self.step(minibatch, generator, decay)


def recorded(inner: GradientStep, episodes: Episodes) -> Episodes:
    """The episodes as they are stored. Raises UsageError as `refuse_missing_masks`."""
    if inner.actions == "discrete":
        refuse_missing_masks(episodes)
    return inner.record(episodes)


def refuse_missing_masks(episodes: Episodes) -> None:
    """Raise UsageError where action values are to follow a truncated episode, and its last
    observation has no mask that allows something."""
    masks = episodes.columns.get(ACTION_MASKS)
    if masks is not None:
        last = masks[(episodes.lengths + 1).cumsum() - 1]
        unknown = ~(last.any(axis=1) | episodes.terminated)
        if unknown.any():
            raise UsageError(
                f"action_mask: episode {episodes.index[unknown][0]} was cut by a time limit, and "
                "its last observation, whose value is learned from, has no mask, or one that "
                "allows nothing: return one, end it as terminated, or choose ppo or impala"
            )
