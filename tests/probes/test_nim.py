"""A game of two agents who take turns, with masks: one shared policy learns to win it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="uv run --group agents pytest")

from flame_rl import Trainer
from flame_rl.actor.simulators.choose import describe
from flame_rl.wire.messages import Environment
from tests.agents import nim_v0
from tests.learners import make_config

NIM = "tests.agents.nim_v0"


def config_of(algorithm: str, **options):
    quick = {
        "episodes_per_iter": 40,
        "steps_per_iter": None,
        "hidden_sizes": (32,),
        "minibatches": 4,
        "gamma": 0.9,
        "workers": 0,
        "local": True,
    }
    return make_config(NIM, algorithm=algorithm, **quick | options)


def winning(left: int) -> int:
    """The choice that leaves a multiple of four; -1 where the game is lost."""
    return left % 4 - 1


PPO = {"iterations": 40, "learning_rate": 0.01, "value_learning_rate": 0.01, "max_kl": 0.1}
DQN = {
    "iterations": 40,
    "learning_rate": 0.003,
    "warm_up_steps": 500,
    "updates_per_step": 0.2,
    "epsilon_steps": 5000,
    "epsilon_end": 0.2,
    "batch_size": 64,
}


@pytest.mark.parametrize(
    ("algorithm", "options"), [("ppo", PPO), pytest.param("dqn", DQN, marks=pytest.mark.slow)]
)
def test_the_winning_moves_are_found(algorithm, options):
    """Whoever can leave a multiple of four sticks wins; the environment raises at what is
    forbidden."""
    game = nim_v0.Nim()
    with Trainer(config_of(algorithm, **options)) as trainer:
        assert trainer.spec.action_mask == "observation" and trainer.spec.observation_dim == 11
        for _ in trainer:
            pass
        game.reset(seed=0)
        found = {}
        for game.left in range(1, nim_v0.STICKS + 1):
            seen = game.observe("a")
            found[game.left] = int(
                trainer.compute_action(seen["observation"], action_mask=seen["action_mask"])
            )
    for left, action in found.items():
        assert winning(left) in (-1, action), found


def test_whoever_waits_has_one_choice_that_does_nothing():
    simulator, spec = describe(Environment(NIM, slots=4))
    assert spec.differs == ""
    slots = np.arange(4)
    simulator.reset(slots, np.array([5, 5, 6, 6]))
    sticks = simulator.observations[:, :-1].argmax(axis=1)
    for turn in (0, 1, 0):
        masks = np.unpackbits(simulator.action_masks, axis=1)[:4, :3]
        for slot in slots:
            moves = slot % 2 == turn
            allowed = [int(moves and n <= sticks[slot]) for n in (1, 2, 3)]
            assert masks[slot].tolist() == (allowed if moves else [1, 0, 0])
        # The one who waits asks for something else, in vain.
        simulator.step(np.tile([0, 2] if turn == 0 else [2, 0], 2).astype(np.int32), slots)
        sticks = sticks - 1
        assert (simulator.observations[:4, :-1].argmax(axis=1) == sticks[:4]).all()
