"""One iteration: publish the policy, collect its episodes, learn from them. Prints and writes
nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flame_rl.backends import Backend
from flame_rl.run.ahead import Ahead
from flame_rl.run.evaluation import Evaluation, evaluate_policy
from flame_rl.run.results import IterationResult, RunState, Timing, Totals, progress
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.system.machine import ONE_BLAS_THREAD
from flame_rl.system.signals import end_if_stopped, stoppable
from flame_rl.wire.messages import CollectRequest, EnvironmentSpec
from flame_rl.wire.steps import recorded_columns

if TYPE_CHECKING:
    from flame_rl.run.trainer import Trainer


@ONE_BLAS_THREAD
def run_iteration(trainer: Trainer, backend: Backend) -> IterationResult:
    """Collect, update, and evaluate where that is due. If any of it fails, learner and totals are
    as they were before.

    A backend that is `Ahead` collects the next iteration during the update.

    Args:
        trainer: its learner is updated in place, and its totals are those after the iteration.
        backend: collects the episodes; it changes no result.

    Raises:
        UsageError, RunError, Interrupted: see `Backend.collect` and `Learner.update`.
    """
    config, spec, learner, done = trainer.config, trainer.spec, trainer.learner, trainer.totals
    iteration, experiment = done.iterations, config.experiment
    snapshot = learner.collector_snapshot()
    request = training_request(config, spec, done, snapshot.version)
    began = time.perf_counter()
    collected = backend.collect(snapshot, request)
    arrived = time.perf_counter()
    count, steps = len(collected.episodes), collected.episodes.steps
    after = done.plus(count, steps)
    if isinstance(backend, Ahead) and progress(experiment, after) < 1:
        latest = learner.snapshot()
        backend.begin(latest, training_request(config, spec, after, latest.version))
    with undone_if_it_fails(trainer):
        raw = learner.rewards.raw(collected.episodes)
        learned = learner.rewards.shaped(collected.episodes, raw)
        losses = learner.update(learned, progress(experiment, done))
        updated = time.perf_counter()
        evaluation = None
        every = experiment.evaluate_every
        if every and (after.iterations % every == 0 or progress(experiment, after) >= 1):
            evaluation = _validate(trainer, backend)
        evaluated = time.perf_counter()
        returns = np.array([episode.rewards.sum() for episode in raw])
        scored = float(returns.mean()) if every is None else None
        if evaluation is not None:
            scored = evaluation.reward_mean
        result = IterationResult(
            iteration=iteration,
            episodes=after.episodes,
            env_steps=after.env_steps,
            reward_mean=float(returns.mean()),
            reward_std=float(returns.std()),
            reward_min=float(returns.min()),
            reward_max=float(returns.max()),
            length_mean=after.length_mean,
            losses=losses,
            reward_parts=learner.rewards.means(collected.episodes, learned),
            outcomes=learner.rewards.outcomes_of(collected.episodes),
            weights_digest=learner.weights_digest(),
            timing=Timing(
                collecting=arrived - began,
                updating=updated - arrived,
                waiting=collected.waiting_seconds,
                evaluating=evaluated - updated,
                env_steps_per_second=steps / collected.seconds,
                bytes_out=collected.bytes_out,
                bytes_in=collected.bytes_in,
                retries=collected.retries,
                dropped=collected.dropped,
            ),
            evaluation=evaluation,
            mean_return=scored,
        )
        end_if_stopped()
        trainer.totals = replace(after, mean_return=scored)
    return result


@contextmanager
def undone_if_it_fails(trainer: Trainer) -> Iterator[None]:
    """If the block fails or is interrupted, learner and totals are as they were before."""
    done, learner = trainer.totals, trainer.learner
    # The only copy of the state in an iteration.
    before = {name: array.copy() for name, array in learner.state_dict().items()}
    trainer.before = RunState(done, before)
    with stoppable(trainer.stop):
        try:
            yield
        except BaseException:
            learner.load_state_dict(before)
            trainer.totals = done
            raise


def _validate(trainer: Trainer, backend: Backend) -> Evaluation:
    """Evaluate the policy after the update; the episodes depend on the iteration's number."""
    snapshot = trainer.learner.snapshot()
    indices = tuple(range(trainer.config.experiment.evaluate_episodes))
    iteration = trainer.totals.iterations
    request = make_request(trainer.config, trainer.spec, iteration, indices, snapshot.version)
    request = replace(request, stream="validation", explore=False)
    return evaluate_policy(backend, snapshot, request, trainer.learner.rewards)


def training_request(
    config: TrainConfig, spec: EnvironmentSpec, done: Totals, version: int
) -> CollectRequest:
    """The request for the next iteration's episodes, collected by the policy `version`: as many as
    it asks for, where what several agents play together counts once."""
    experiment = config.experiment
    steps, count = experiment.steps_per_iter, experiment.episodes_per_iter
    if steps is not None:
        count = experiment.first_episodes
        if done.length_mean:
            growth = done.length_growth if experiment.first_episodes is None else 1.0
            expected = done.length_mean * growth
            count = max(1, round(steps / (expected * spec.agent_count)))
        elif count is None:
            count = math.ceil(steps / ((spec.time_limit or steps) * spec.agent_count))
    return make_request(config, spec, done.iterations, tuple(range(count)), version)


def make_request(
    config: TrainConfig,
    spec: EnvironmentSpec,
    iteration: int,
    indices: tuple[int, ...],
    version: int,
) -> CollectRequest:
    """The request that determines an iteration's training episodes, given the policy `version`."""
    return CollectRequest(
        environment=environment_of(config, spec.env_id),
        run_seed=config.experiment.seed,
        iteration=iteration,
        indices=indices,
        policy_version=version,
        columns=recorded_columns(spec, config.experiment.reward_parts, config.experiment.outcomes),
        agents=spec.agent_count,
    )
