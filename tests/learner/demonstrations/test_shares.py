"""Demonstrations beside a replay memory: their share of each minibatch, and that they stay."""

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.learner import Learner
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import demonstrations_for, make_learner, random_episodes

OBSERVED = spaces.Box(-np.inf, np.inf, (3,), np.float32)
REAL = EnvironmentSpec("X-v0", OBSERVED, spaces.Box(-1, 1, (2,), np.float32))
CHOICE = EnvironmentSpec("X-v0", OBSERVED, spaces.Discrete(2))
OPTIONS = {
    "hidden_sizes": (8,),
    "warm_up_steps": 0,
    "batch_size": 10,
    "updates_per_step": 0.5,
    "sequence_length": 3,
    "burn_in": 1,
    "capacity": 30,
}
ALGORITHMS = ("dqn", "sarsa", "successor", "r2d2", "ddpg", "td3", "sac")


def learner_of(algorithm: str, **options) -> Learner:
    spec = CHOICE if algorithm in ALGORITHMS[:4] else REAL
    name = demonstrations_for(spec.action_space, spec.observation_space)
    if algorithm == "r2d2":
        options |= {"memory": "gru", "memory_size": 4}
    options = {"demonstrations": name} | OPTIONS | options
    return make_learner(spec, algorithm=algorithm, **options)


def episodes_for(algorithm: str):
    return random_episodes(continuous=algorithm not in ALGORITHMS[:4])


def drawn(learner: Learner, monkeypatch) -> list[dict[str, np.ndarray]]:
    """The samples of every gradient step from now on."""
    inner, found = learner.algorithm.inner, []
    step = inner.step

    def noted(samples, generator, decay):
        found.append({name: np.array(column) for name, column in samples.items()})
        return step(samples, generator, decay)

    monkeypatch.setattr(inner, "step", noted)
    return found


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0), (0.04, 0), (0.05, 1), (0.5, 5), (0.25, 3), (0.9, 9), (1.0, 9)]
)
def test_a_minibatch_has_exactly_its_share(share, expected, monkeypatch):
    """Observations tell who played."""
    learner = learner_of("sac", demonstration_share=share)
    found = drawn(learner, monkeypatch)
    demonstrated = learner.algorithm.demonstrations.episodes.observations
    for _ in range(3):
        learner.update(episodes_for("sac"))
    assert len(found) > 20
    for samples in found:
        rows = samples["observations"][:, None] == demonstrated
        theirs = rows.all(axis=2).any(axis=1)
        assert len(theirs) == 10 and theirs.sum() == expected
        # The run's own steps come first.
        assert not theirs[: 10 - expected].any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns_from_both(algorithm, monkeypatch):
    learner = learner_of(algorithm)
    found = drawn(learner, monkeypatch)
    demonstrated = learner.algorithm.demonstrations.episodes.observations
    own = episodes_for(algorithm)
    for _ in range(4):  # 68 steps, of which 30 are kept
        metrics = learner.update(own)
    assert np.isfinite(list(metrics.values())).all()
    for samples in found:
        seen = samples["observations"]
        first = seen.reshape(len(seen), -1, 3)[:, 0]
        theirs = (first[:, None] == demonstrated).all(axis=2).any(axis=1)
        ours = (first[:, None] == own.observations).all(axis=2).any(axis=1)
        assert (theirs != ours).all() and theirs.sum() == 5
    assert learner.algorithm.replay.store.steps == 68
    kept = learner.algorithm.minibatches.store
    assert (kept.size, kept.first) == (25, 0)
    everything = kept.read(np.arange(28))["observations"]
    np.testing.assert_array_equal(everything, demonstrated)


def test_demonstrations_have_weight_1_beside_priorities(monkeypatch):
    learner = learner_of("dqn", prioritized=True)
    found = drawn(learner, monkeypatch)
    for _ in range(3):
        learner.update(episodes_for("dqn"))
    for samples in found:
        assert samples["weights"].shape == (10,)
        assert (samples["weights"][5:] == 1).all() and samples["weights"][:5].max() <= 1
    assert learner.algorithm.replay._priorities.state()["priorities"].std() > 0


def test_without_demonstrations_no_other_number_is_drawn():
    """Share 0 draws none either: the same bytes as without."""
    digests = set()
    for options in ({"demonstration_share": 0.0}, {"demonstrations": None}):
        learner = learner_of("td3", **options)
        for _ in range(3):
            learner.update(episodes_for("td3"))
        digests.add(learner.weights_digest())
    assert len(digests) == 1


def test_masks_are_asked_for_where_targets_need_them():
    spec = EnvironmentSpec("X-v0", OBSERVED, spaces.Discrete(2), action_mask="info")
    name = demonstrations_for(spec.action_space, OBSERVED)
    learner = make_learner(spec, algorithm="dqn", demonstrations=name, **OPTIONS)
    # As soon as they are read, which is before the first episode.
    with pytest.raises(UsageError, match=r"--demonstrations: .*: action_masks: missing; targets"):
        _ = learner.algorithm.demonstrations.digest
    # What is cloned needs none.
    learner = make_learner(spec, algorithm="bc", hidden_sizes=(8,), clone_epochs=1)
    assert np.isfinite(learner.update(random_episodes(continuous=False, masked=True))["loss"])
