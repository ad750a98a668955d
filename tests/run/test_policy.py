"""A saved policy acts without a Trainer, for one observation or for many."""

import sys

import numpy as np
import pytest

from flame_rl import Policy, TrainConfig, Trainer
from flame_rl.learner.off_policy.replay import replay

HERE = {"local": True, "workers": 0, "hidden_sizes": (8,)}
SHORT = {"iterations": 1, "episodes_per_iter": 2, "max_episode_steps": 20} | HERE
CASES = {
    "ppo": {"env": "cartpole"},
    "dqn": {"env": "cartpole", "warm_up_steps": 4, "batch_size": 4},
    "sac": {"env": "Pendulum-v1", "warm_up_steps": 4, "batch_size": 4},
}


@pytest.mark.parametrize("algorithm", CASES)
def test_it_acts_as_the_trainer_does(algorithm, tmp_path):
    config = TrainConfig(algorithm=algorithm, **CASES[algorithm] | SHORT)
    with Trainer(config) as trainer:
        trainer.train()
        trainer.save(tmp_path / "some.ckpt")
        space = trainer.spec.observation_space
        observations = [space.sample() for _ in range(11)]
        expected = [trainer.compute_action(observation) for observation in observations]
    policy = Policy.load(tmp_path / "some.ckpt")
    assert policy.spec == trainer.spec and policy.updates == 1
    np.testing.assert_array_equal([policy.act(each) for each in observations], expected)
    np.testing.assert_array_equal(policy.act_all(observations), expected)
    np.testing.assert_array_equal(policy.act_all(np.array(observations)), expected)
    sampled = [Policy.load(tmp_path / "some.ckpt", seed=3).act_all(observations, True)]
    sampled += [Policy.load(tmp_path / "some.ckpt", seed=3).act_all(observations, True)]
    np.testing.assert_array_equal(*sampled)
    if algorithm == "sac":
        assert not np.array_equal(sampled[0], expected)


AUXILIARY = """
from torch import nn
class Zero(nn.Module):
    def __init__(self, features, spec):
        super().__init__()
        self.layer = nn.Linear(features, 1)
    def forward(self, features, samples):
        return self.layer(features).squeeze(-1) ** 2
def gradient(log_probs, entropies, samples):
    return -log_probs * samples["advantages"]
"""


def test_it_needs_neither_own_losses_nor_room_for_replay(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(AUXILIARY)
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        own = {"auxiliary": ("own_losses:Zero",), "auxiliary_weights": (0.1,)}
        own["policy_loss"] = "own_losses:gradient"
        config = TrainConfig("cartpole", algorithm="ppo", shared_torso=True, **own, **SHORT)
        with Trainer(config) as trainer:
            trainer.train()
            trainer.save(tmp_path / "some.ckpt")
            observation = trainer.spec.observation_space.sample()
            expected = trainer.compute_action(observation)
        del sys.modules["own_losses"]
    assert Policy.load(tmp_path / "some.ckpt").act(observation) == expected
    config = TrainConfig("cartpole", algorithm="dqn", capacity=2_000_000, **SHORT)
    with Trainer(config) as trainer:
        trainer.save(tmp_path / "large.ckpt")
    monkeypatch.setattr(replay, "physical_bytes", lambda: 1 << 20)
    Policy.load(tmp_path / "large.ckpt")


def test_a_memory_is_of_as_many_episodes_as_have_begun(tmp_path):
    config = TrainConfig("Pendulum-v1", algorithm="ppo", memory="gru", memory_size=4, **SHORT)
    with Trainer(config) as trainer:
        trainer.save(tmp_path / "some.ckpt")
        space = trainer.spec.observation_space
    policy = Policy.load(tmp_path / "some.ckpt")
    steps = [[space.sample() for _ in range(9)] for _ in range(4)]
    with pytest.raises(ValueError, match="none has begun"):
        policy.act_all(steps[0])
    policy.begin(9)
    together = np.array([policy.act_all(step) for step in steps])
    for episode in range(9):
        policy.begin()
        alone = [policy.act(step[episode]) for step in steps]
        np.testing.assert_array_equal(alone, together[:, episode])
    with pytest.raises(ValueError, match="1 had begun, and 2 are observed"):
        policy.act_all(steps[0][:2])
