"""The training loop: collect, update, yield. It prints nothing and writes nothing."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from flame_rl.backends import Backend
from flame_rl.run.evaluation import Evaluation, evaluate
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import (
    CollectRequest,
    Environment,
    EnvironmentSpec,
    Episode,
    Episodes,
    PolicySnapshot,
)
from flame_rl.wire.steps import step_columns

if TYPE_CHECKING:
    from torch import Tensor

# Where only the steps of an iteration are given, and nothing is known of an episode's length.
FIRST_EPISODES = 8


class Learner(Protocol):
    """What the loop knows of an algorithm."""

    def snapshot(self) -> PolicySnapshot: ...

    def update(self, episodes: Episodes) -> dict[str, float]: ...

    def weights_digest(self) -> str: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Totals:
    """What of a run is done.

    Attributes:
        iterations, episodes, env_steps: totals since the start.
        length_mean: steps per episode of the last iteration; 0 if there was none.
    """

    iterations: int = 0
    episodes: int = 0
    env_steps: int = 0
    length_mean: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Where the time of an iteration went: measured, so it differs from run to run.

    Attributes:
        collecting: seconds from publishing the weights to having all episodes.
        updating: seconds of the learner's update.
        waiting: of `collecting`, the seconds in which this process had nothing to do.
        evaluating: seconds of the evaluation; 0 where there was none.
        env_steps_per_second: steps of all workers together, over `collecting`.
        bytes_out, bytes_in: to the workers and from them.
        retries: tasks that had to be sent again.
        dropped: answers that came when nobody waited for them any more.
    """

    collecting: float
    updating: float
    waiting: float
    evaluating: float
    env_steps_per_second: float
    bytes_out: int
    bytes_in: int
    retries: int
    dropped: int


@dataclass(frozen=True)
class IterationResult:
    """One iteration. All but `timing` is a function of the configuration.

    Attributes:
        iteration: from 0.
        episodes, env_steps: totals since the start.
        reward_mean, reward_std, reward_min, reward_max: of the undiscounted sums of this
            iteration's episodes.
        length_mean: steps per episode.
        losses: what the algorithm reports: loss, gradient_norm, policy_entropy.
        weights_digest: SHA-256 over the learner's weights after the update.
        timing: see `Timing`.
        evaluation: of the policy after the update, where one was due.
    """

    iteration: int
    episodes: int
    env_steps: int
    reward_mean: float
    reward_std: float
    reward_min: float
    reward_max: float
    length_mean: float
    losses: dict[str, float]
    weights_digest: str
    timing: Timing
    evaluation: Evaluation | None = None

    @property
    def totals(self) -> Totals:
        """What is done after this iteration."""
        return Totals(self.iteration + 1, self.episodes, self.env_steps, self.length_mean)


def train(
    config: TrainConfig,
    spec: EnvironmentSpec,
    learner: Learner,
    backend: Backend,
    stop: threading.Event,
    done: Totals,
) -> Iterator[IterationResult]:
    """Yield one result after another, up to `config.iterations`, or fewer once `stop` is set.

    Args:
        config: seed, iterations and episodes per iteration.
        spec: the environment's spaces.
        learner: updated in place.
        backend: where episodes are collected; it changes no result.
        stop: looked at between iterations; the backend looks at it while it waits.
        done: what was done before, by the same learner.
    """
    total_episodes, total_steps = done.episodes, done.env_steps
    length_mean = done.length_mean
    for iteration in range(done.iterations, config.iterations):
        if stop.is_set():
            return
        snapshot = learner.snapshot()
        indices = tuple(range(episodes_wanted(config, length_mean)))
        request = make_request(config, spec, iteration, indices, snapshot)
        began = time.perf_counter()
        collected = backend.collect(snapshot, request)
        arrived = time.perf_counter()
        evaluation_due = config.evaluate_every and (iteration + 1) % config.evaluate_every == 0
        before = clone(learner.state_dict()) if evaluation_due else {}
        losses = learner.update(collected.episodes)
        updated = time.perf_counter()
        evaluation = None
        if evaluation_due:
            try:
                evaluation = validate(config, spec, iteration, learner, backend)
            except BaseException:
                # An iteration is done as a whole or not at all.
                learner.load_state_dict(before)
                raise
        evaluated = time.perf_counter()

        rewards = np.array([episode.rewards.sum() for episode in collected.episodes])
        steps = collected.episodes.steps
        total_episodes += len(collected.episodes)
        total_steps += steps
        length_mean = steps / len(collected.episodes)
        yield IterationResult(
            iteration=iteration,
            episodes=total_episodes,
            env_steps=total_steps,
            reward_mean=float(rewards.mean()),
            reward_std=float(rewards.std()),
            reward_min=float(rewards.min()),
            reward_max=float(rewards.max()),
            length_mean=length_mean,
            losses=losses,
            weights_digest=learner.weights_digest(),
            timing=Timing(
                collecting=arrived - began,
                updating=updated - arrived,
                waiting=collected.waiting_seconds,
                evaluating=evaluated - updated,
                env_steps_per_second=steps / (arrived - began),
                bytes_out=collected.bytes_out,
                bytes_in=collected.bytes_in,
                retries=collected.retries,
                dropped=collected.dropped,
            ),
            evaluation=evaluation,
        )


def clone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy that an update leaves alone."""
    return {name: tensor.clone() for name, tensor in state.items()}


def episodes_wanted(config: TrainConfig, length_mean: float) -> int:
    """How many episodes the next iteration has, fixed before it starts.

    Args:
        config: says how many, or how many steps.
        length_mean: of the iteration before, 0 if there was none.
    """
    if config.steps_per_iter is None:
        return config.episodes_per_iter
    return max(1, round(config.steps_per_iter / length_mean)) if length_mean else FIRST_EPISODES


def validate(
    config: TrainConfig, spec: EnvironmentSpec, iteration: int, learner: Learner, backend: Backend
) -> Evaluation:
    """How good the policy is after this iteration, in episodes that choose the best one."""
    snapshot = learner.snapshot()
    indices = tuple(range(config.evaluate_episodes))
    request = make_request(config, spec, iteration, indices, snapshot)
    return evaluate(
        backend, snapshot, dataclasses.replace(request, stream="validation", explore=False)
    )


def reproduce(
    config: TrainConfig, spec: EnvironmentSpec, learner: Learner, backend: Backend, done: Totals
) -> Episode:
    """Collect only the episode `config.reproduce` of the iteration that comes after `done`."""
    snapshot = learner.snapshot()
    request = make_request(config, spec, done.iterations, (config.reproduce,), snapshot)
    (episode,) = backend.collect(snapshot, request).episodes
    return episode


def make_request(
    config: TrainConfig,
    spec: EnvironmentSpec,
    iteration: int,
    indices: tuple[int, ...],
    snapshot: PolicySnapshot,
) -> CollectRequest:
    """The request that, with the snapshot, determines these episodes of an iteration."""
    return CollectRequest(
        environment=Environment(spec.env_id, config.max_episode_steps, config.simulator),
        run_seed=config.seed,
        iteration=iteration,
        indices=indices,
        policy_version=snapshot.version,
        columns=step_columns(spec),
    )
