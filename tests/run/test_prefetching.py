"""Collecting while learning: which policy collects, the same bytes everywhere, and corrections."""

import math
import threading
import time

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.backends.dispatch import Collected
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.nets.acting import ActingPolicy
from flame_rl.run.checkpoint import Checkpointer
from flame_rl.run.folder import BEST_NAME, CHECKPOINTS_NAME
from flame_rl.run.iteration import PrefetchingBackend, make_request
from flame_rl.settings.config import TrainConfig
from flame_rl.system.signals import EitherEvent
from tests.learners import make_config

ALGORITHMS = ["a2c", "ppo"]


def config_of(algorithm: str, workers: int, **options) -> TrainConfig:
    chosen = {"iterations": 5, "episodes_per_iter": 6, "overlap": True, "seed": 3}
    return make_config(
        "CartPole-v1", algorithm=algorithm, workers=workers, local=True, **(chosen | options)
    )


def rows(results) -> list:
    return [(r.weights_digest, r.reward_mean, r.metrics, r.evaluation) for r in results]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_iteration_is_collected_by_the_policy_of_one_update_ago(algorithm, monkeypatch):
    asked = []
    with Trainer(config_of(algorithm, 0)) as trainer:
        collect = trainer._backend.collect

        def recorded(snapshot, request):
            asked.append((request.iteration, request.policy_version, snapshot))
            return collect(snapshot, request)

        monkeypatch.setattr(trainer._backend, "collect", recorded)
        latest = []
        for _ in range(4):
            latest.append(trainer.learner.snapshot())
            trainer.train()
    assert [(iteration, version) for iteration, version, _ in asked] == [
        *((0, 0), (1, 0), (2, 1), (3, 2))
    ]
    for _, version, snapshot in asked:
        assert snapshot.version == latest[version].version == version
        ours, theirs = (s.layers[1].arrays["weight"] for s in (snapshot, latest[version]))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_count_by_the_ratio_of_the_two_policies(algorithm, monkeypatch):
    """Measured with the policies that the actors run."""
    original, used = Batch.advantages, []

    def recorded(batch, *arguments):
        used.append(batch.weights)
        return original(batch, *arguments)

    monkeypatch.setattr(Batch, "advantages", recorded)
    with Trainer(config_of(algorithm, 0, learning_rate=0.02)) as trainer:
        collect, batches = trainer._backend.collect, []

        def collected(snapshot, request):
            batches.append((snapshot, trainer.learner.snapshot(), collect(snapshot, request)))
            return batches[-1][-1]

        monkeypatch.setattr(trainer._backend, "collect", collected)
        for _ in range(3):
            used.clear()
            result = trainer.train()
            behind, latest, episodes = batches[-1][0], batches[-1][1], batches[-1][2].episodes
            policies = behind, latest, trainer.learner.snapshot()
            acted, now, after = (chances(snapshot, episodes) for snapshot in policies)
            weights = np.minimum(1, now / acted)
            np.testing.assert_allclose(used[0], weights, rtol=1e-3)
            # The divergence is about the actions of the policy before the update.
            terms = after / now - 1 - np.log(after / now)
            expected = np.average(terms, weights=now / acted)
            assert result.metrics["kl"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert used[0].min() < 0.98


def chances(snapshot, episodes) -> np.ndarray:
    """Probabilities of the recorded discrete actions, by the softmax of the actors' logits."""
    acting, out = ActingPolicy(snapshot), []
    for episode in episodes:
        rows = np.zeros((8 * math.ceil(episode.length / 8), 4), np.float32)
        rows[: episode.length] = episode.observations[:-1]
        weights = np.exp(acting.forward(rows)[: episode.length])
        taken = weights[np.arange(episode.length), episode.actions]
        out.append(taken / weights.sum(axis=1))
    return np.concatenate(out)


@pytest.mark.parametrize("options", [{}, {"shared_torso": True}], ids=["separate", "shared"])
def test_the_best_checkpoint_has_the_policy_that_collected_the_best_rewards(options, tmp_path):
    scores, collecting = [], []
    with Trainer(config_of("ppo", 0, **options)) as trainer:
        keeper = Checkpointer(tmp_path, trainer, {})
        for _ in range(5):
            collecting.append(trainer.learner.collector_snapshot())
            result = trainer.train()
            keeper.report(result)
            scores.append(result.reward_mean)
        keeper.save()
    best = int(np.argmax(scores))
    assert best >= 2  # so the policy that collected was no longer the first one
    with Trainer.load(tmp_path / CHECKPOINTS_NAME / BEST_NAME) as trainer:
        kept = trainer.learner.snapshot()
    for ours, theirs in zip(kept.layers, collecting[best].layers, strict=True):
        for name, array in theirs.arrays.items():
            np.testing.assert_array_equal(ours.arrays[name], array)


def test_a_failed_update_leaves_what_was_begun_usable(monkeypatch):
    with Trainer(config_of("ppo", 1)) as trainer:
        whole = rows(trainer)
    with Trainer(config_of("ppo", 1)) as trainer:
        first = rows([trainer.train()])
        update = trainer.learner.update

        def interrupted(*arguments):
            update(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(trainer.learner, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        monkeypatch.undo()
        assert first + rows(trainer) == whole


def test_an_evaluation_waits_for_what_was_begun():
    with Trainer(config_of("ppo", 1)) as trainer:
        trainer.train()
        assert trainer._backend.begun is not None
        one = trainer.evaluate(episodes=3)
        results = rows(trainer)
    with Trainer(config_of("ppo", 0)) as trainer:
        trainer.train()
        assert trainer.evaluate(episodes=3) == one
        assert rows(trainer) == results


def test_what_was_begun_is_collected_during_the_update():
    begun, updated = threading.Event(), threading.Event()

    class Slow:
        listener = None

        def collect(self, snapshot, request):
            begun.set()
            # As long as the update; one after the other, neither would end.
            assert updated.wait(200)
            return Collected(None, 0, 0, 0.0, 0.3, 0)

        def close(self):
            pass

    stop = threading.Event()
    ahead = PrefetchingBackend(Slow(), EitherEvent(stop))
    ahead.begin(None, "next")
    assert begun.wait(200)
    updated.set()
    assert ahead.collect(None, "next").seconds == 0.3
    ahead.close()
    assert not stop.is_set()


def test_a_run_that_ends_early_ends_what_was_begun():
    options = {"env": "tests.environments:Slow-v0", "episodes_per_iter": 50}
    config = config_of("ppo", 1).changed(**options)
    trainer = Trainer(config)
    request = make_request(trainer.config, trainer.spec, 0, tuple(range(50)), 0)
    trainer._backend.begin(trainer.learner.snapshot(), request)
    began = time.perf_counter()
    trainer.close()
    assert time.perf_counter() - began < 50
