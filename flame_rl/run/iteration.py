"""One iteration: collect episodes, learn from them; and collecting the next during an update."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flame_rl.actor.fragments import next_starts
from flame_rl.backends import Backend
from flame_rl.backends.dispatch import Collected
from flame_rl.run.checks import fragment_steps
from flame_rl.run.results import SPREAD, IterationResult, Timing, Totals, evaluation_of, progress
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.settings.experiment import Experiment
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectRequest, EnvironmentSpec, Episodes, PolicySnapshot

if TYPE_CHECKING:  # imports torch, which takes seconds
    from flame_rl.learner.learner import Learner


def collect_iteration(
    learner: Learner, backend: Backend, config: TrainConfig, spec: EnvironmentSpec, done: Totals
) -> tuple[CollectRequest, Collected]:
    """Collect the next iteration's episodes; returns the request, too. A prefetching backend begins
    to collect those of the iteration after it. Raises as `Backend.collect` does."""
    snapshot = learner.collector_snapshot()
    request = training_request(config, spec, done, snapshot.version)
    asked = time.perf_counter()
    collected = backend.collect(snapshot, request)
    collected = replace(collected, collecting=time.perf_counter() - asked)
    if isinstance(backend, PrefetchingBackend):
        after = _after(request, done, collected.episodes)
        if progress(config.experiment, after) < 1:
            latest = learner.snapshot()
            backend.begin(latest, training_request(config, spec, after, latest.version))
    return request, collected


def learn_iteration(
    learner: Learner,
    backend: Backend,
    experiment: Experiment,
    done: Totals,
    request: CollectRequest,
    collected: Collected,
) -> IterationResult:
    """Update the learner in place by what `collect_iteration` returned, and evaluate its policy
    where that is due, with episodes that the backend collects. `done` are the totals before the
    iteration. Raises as `Backend.collect` and `Learner.update` do."""
    rewards, began, episodes = learner.rewards, time.perf_counter(), collected.episodes
    raw = rewards.raw(episodes)
    after = _after(request, done, raw)
    shaped = rewards.shaped(episodes, raw)
    metrics = learner.update(shaped, progress(experiment, done))
    updated = time.perf_counter()
    returns = np.array([episode.rewards.sum() for episode in raw])
    whole = returns if request.fragment_steps is None else _whole_returns(request, raw, returns)
    mean_return = float(whole.mean()) if len(whole) else None
    outcomes = rewards.outcomes_of(episodes)
    if request.fragment_steps is not None:
        outcomes["whole_return"] = math.nan if mean_return is None else mean_return
    evaluation, every = None, experiment.evaluate_every
    if every is not None:
        mean_return = None
        if after.iterations % every == 0 or progress(experiment, after) >= 1:
            snapshot, indices = learner.snapshot(), tuple(range(experiment.evaluate_episodes))
            asked = replace(request, indices=indices, policy_version=snapshot.version)
            asked = replace(asked, stream="validation", explore=False)
            asked = replace(asked, steps=None, fragment_steps=None, starts={})
            evaluated = backend.collect(snapshot, asked).episodes
            evaluation = evaluation_of(evaluated, request.agents, rewards)
            mean_return = evaluation.reward_mean
    timing = Timing(
        collecting=collected.collecting,
        updating=updated - began,
        waiting=collected.waiting,
        evaluating=time.perf_counter() - updated,
        env_steps_per_second=episodes.steps / collected.seconds,
        bytes_out=collected.bytes_out,
        bytes_in=collected.bytes_in,
        retries=collected.retries,
        dropped=collected.dropped,
    )
    return IterationResult(
        iteration=done.iterations,
        episodes=after.episodes,
        env_steps=after.env_steps,
        **{f"reward_{name}": float(getattr(returns, name)()) for name in SPREAD},
        length_mean=after.length_mean,
        metrics=metrics,
        reward_parts=rewards.means(episodes, shaped),
        outcomes=outcomes,
        weights_digest=learner.weights_digest(),
        timing=timing,
        evaluation=evaluation,
        totals=replace(after, mean_return=mean_return),
    )


def _after(request: CollectRequest, done: Totals, episodes: Episodes) -> Totals:
    """The totals after the iteration in which these episodes answered `request`."""
    return Totals(
        iterations=done.iterations + 1,
        episodes=done.episodes + len(episodes),
        env_steps=done.env_steps + episodes.steps,
        length_mean=episodes.steps / len(episodes),
        starts=next_starts(request, episodes),
    )


def _whole_returns(request: CollectRequest, episodes: Episodes, returns: np.ndarray) -> np.ndarray:
    """The returns of the episodes that ended, float64 [E], given those of their last fragments."""
    ended = np.flatnonzero(episodes.terminated | episodes.truncated)
    starts = [request.starts.get(index) for index in episodes.index[ended].tolist()]
    return returns[ended] + [0.0 if start is None else start.so_far for start in starts]


def training_request(
    config: TrainConfig, spec: EnvironmentSpec, done: Totals, version: int
) -> CollectRequest:
    """The request for the next iteration's episodes, by the policy `version`. With a number of env
    steps, it begins with as many episodes as have them if they are as long as the last iteration's,
    at first as the time limit; fragments, with as many as have them if none ends early."""
    experiment = config.experiment
    steps, count = experiment.steps_per_iter, experiment.episodes_per_iter
    most = fragment_steps(config, spec)
    if steps is not None:
        if experiment.env_steps is not None:
            steps = min(steps, experiment.env_steps - done.env_steps)
        length = most or done.length_mean or spec.time_limit or steps
        count = math.ceil(steps / (length * spec.agent_count))
    request = make_request(config, spec, done.iterations, range(count), version)
    return replace(request, steps=steps, fragment_steps=most, starts=done.starts)


def make_request(
    config: TrainConfig, spec: EnvironmentSpec, iteration: int, indices: Iterable[int], version: int
) -> CollectRequest:
    """The request for training episodes of an iteration, given the policy `version`."""
    return CollectRequest(
        environment=environment_of(config, spec.env_id),
        run_seed=config.experiment.seed,
        iteration=iteration,
        indices=tuple(indices),
        policy_version=version,
        columns=step_columns(spec, config.experiment.reward_parts, config.experiment.outcomes),
        agents=spec.agent_count,
    )


class PrefetchingBackend:
    """Collects by a backend, and can begin before it is asked to: `begun` is not yet fetched."""

    def __init__(self, backend: Backend, stop: threading.Event) -> None:
        """`stop` ends the backend's `collect`; it is set by `close`."""
        self._backend, self._stop = backend, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.begun: CollectRequest | None = None
        self._future: Future[Collected] | None = None

    def begin(self, snapshot: PolicySnapshot, request: CollectRequest) -> None:
        """Begin to collect; `collect` with the same request waits for it."""
        self.begun = request
        self._future = self._thread.submit(self._backend.collect, snapshot, request)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        """See `Backend.collect`. Another request waits until what was begun is collected."""
        if self._future is not None and request == self.begun:
            future, self._future, self.begun = self._future, None, None
            return future.result()
        if self._future is not None:
            wait([self._future])
        return self._backend.collect(snapshot, request)

    def close(self) -> None:
        """End what was begun, and the backend."""
        self._stop.set()
        self._thread.shutdown(wait=True)
        self._backend.close()
