"""Runs that learn from a shaped reward, and errors that name a part and its step."""

import numpy as np
import pytest

from flame_rl import Trainer
from tests.helpers import environment_id, refusal, run_ok
from tests.learners import make_config
from tests.runs import QUICK


def opposite(episode) -> np.ndarray:
    return 1 - episode.rewards


def shaped(episode) -> np.ndarray:
    change = np.abs(np.diff(episode.observations, axis=0)).sum(axis=1)
    return episode.rewards - change - episode.actions.reshape(episode.length, -1).sum(axis=1)


HERE = "tests.laws.test_rewards"


@pytest.mark.parametrize("algorithm", ["reinforce", "dqn"])
def test_the_shaped_reward_is_learned_and_the_own_one_reported(algorithm):
    """Action 1 pays; the function pays action 0 instead."""
    options = QUICK | {"updates_per_step": 0.5, "epsilon_steps": 300, "capacity": 2_000}
    options |= {"algorithm": algorithm, "evaluate_every": 30, "reward": f"{HERE}:opposite"}
    with Trainer(make_config(environment_id("ActionReward"), **options)) as trainer:
        *_, last = trainer
        evaluation = trainer.evaluate(episodes=10)
    assert last.reward_mean < 0.1
    assert last.reward_parts == {"reward_learned": pytest.approx(1 - last.reward_mean)}
    assert last.evaluation.reward_mean == evaluation.reward_mean == 0


def test_an_error_names_the_step_and_one_episode_can_be_played_again(tmp_path):
    words = ("--iterations", "2", "--episodes-per-iter", "4", "--local", "--workers", "0")
    parts = ("--reward-parts", "gain", "cost", "--output", "failed")
    env_id = environment_id("WithoutCost")
    said = "info: step returned no 'cost', which --reward-parts names; it has gain"
    said += f" (environment {env_id}, iteration 0, episode 0, step 1, seed"
    assert said in refusal("--env", env_id, *words, *parts, cwd=tmp_path)
    vector = ("--env", environment_id("TwoRewards"), "--reward-weights", "1", "0")
    run_ok(*vector, *words, "--output", "run", cwd=tmp_path)
    done = run_ok("--resume", "run", "--iterations", "3", "--reproduce", "0", cwd=tmp_path)
    assert "in 3 steps; nothing failed" in done.stdout
    reward = float(done.stdout.split("Return ")[1].split()[0])
    assert reward in (0.0, 1.0, 2.0, 3.0)
