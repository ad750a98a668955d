"""Whole runs with several agents: what is learned, reported and refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("pettingzoo", reason="uv run --group agents pytest")

from PIL import Image, ImageSequence

from flame_rl import Trainer
from flame_rl.run.iteration import training_request
from flame_rl.run.results import Totals, mean_interval
from tests import runs
from tests.helpers import finished_run, run_here, run_ok
from tests.learners import make_config

RELAY, RAGGED = "tests.agents.relay_v0", "tests.agents.ragged_v0"
QUICK = runs.QUICK | {
    "value_learning_rate": 0.02,
    "minibatches": 2,
    "gamma": 0.5,
    "updates_per_step": 0.3,
    "epsilon_steps": 1000,
    "capacity": 5_000,
}


@pytest.mark.parametrize("algorithm", ["reinforce", "dqn"])
@pytest.mark.parametrize(("number", "best"), [(True, 3.5), (False, 2.5)])
def test_the_best_return_is_found_with_and_without_a_number(algorithm, number, best):
    config = make_config(RELAY, algorithm=algorithm, agent_number=number, **QUICK)
    with Trainer(config) as trainer:
        *_, last = trainer
        evaluation = trainer.evaluate(episodes=10)
    assert evaluation.reward_mean == best and evaluation.episodes == 20
    assert evaluation.length_mean == 3.5 and last.length_mean == 3.5
    if number:
        assert (evaluation.reward_min, evaluation.reward_max) == (2, 5)
    assert last.episodes == 30 * 20 * 2 and last.env_steps == 30 * 20 * 7


def test_one_agents_end_has_no_value_and_anothers_time_limit_has():
    options = QUICK | {"value_epochs": 10, "iterations": 40}
    config = make_config(RELAY, algorithm="a2c", agent_number=True, **options)
    with Trainer(config) as trainer:
        list(trainer)
        # A bit, the step, and the agent's number.
        rows = [[b, n, *who] for who, n in (((1, 0), 0), ((1, 0), 1), ((0, 1), 2)) for b in (0, 1)]
        with torch.no_grad():
            values = trainer.learner.parts["value"](torch.tensor(rows, dtype=torch.float32))
    assert values.flatten().tolist() == pytest.approx([1.5, 1.5, 1, 1, 2, 2], abs=0.2)


def test_an_iteration_has_whole_groups_of_about_so_many_steps():
    sizes = {"episodes_per_iter", "steps_per_iter"}
    rest = {name: value for name, value in QUICK.items() if name not in sizes}
    config = make_config(RELAY, steps_per_iter=70, **rest)
    with Trainer(config) as trainer:
        request = training_request(config, trainer.spec, Totals(1, 16, 56, 3.5), 0)
        assert request.indices == tuple(range(10)) and request.agents == 2
        assert [trainer.train().env_steps for _ in range(2)] == [70, 140]


def test_agents_that_play_together_are_one_sample_of_an_evaluation():
    with Trainer(make_config(RAGGED, **QUICK)) as trainer:
        request = trainer.evaluation_request(9, False, 4)
        evaluation = trainer.evaluate(9, seed=4)
        episodes = trainer._backend.collect(trainer.learner.snapshot(), request).episodes
    returns = np.array([episode.rewards.sum() for episode in episodes])
    low, high = mean_interval(np.array([returns[i : i + 3].mean() for i in range(0, 27, 3)]))
    assert (evaluation.reward_low, evaluation.reward_high) == (low, high)
    assert evaluation.reward_mean == pytest.approx(returns.mean())


SMALL = ("--iterations", "4", "--hidden-sizes", "8", "--checkpoint-every", "1", "--local")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder in which `run` is one."""
    return finished_run(tmp_path_factory, "--env", RELAY, *SMALL, "--workers", "0").parent


def test_a_film_shows_each_step_once_and_each_agent_is_reported(trained):
    done = run_ok("watch", "run", "--video", "film.gif", "--episodes", "2", cwd=trained)
    # The first line says what is shown.
    lines = [line.strip() for line in done.stdout.splitlines()[1:]]
    for place, (index, agent, length) in enumerate(
        [(0, "first", 2), (0, "second", 5), (1, "first", 2), (1, "second", 5)]
    ):
        assert lines[place].startswith(f"Episode {index}, {agent}: return "), lines
        assert lines[place].endswith(f" in {length} steps")
    with Image.open(trained / "film.gif") as film:
        shades = [np.asarray(p.convert("RGB"))[3, 3, 0] for p in ImageSequence.Iterator(film)]
    assert shades == 2 * [0, 50, 100, 150, 200, 250]


def test_one_episode_can_be_evaluated_and_played_again(trained):
    words = ("evaluate", "run", "--episodes", "3", "--json", "--local", "--workers")
    found = [run_here(*words, workers, cwd=trained).stdout for workers in ("0", "2")]
    assert found[0] == found[1] and json.loads(found[0])["episodes"] == 6
    done = run_ok("--resume", "run", "--iterations", "5", "--reproduce", "3", cwd=trained)
    assert [line.split(" in ")[1] for line in done.stdout.splitlines() if "Return" in line] == [
        *("2 steps; nothing failed.", "5 steps; nothing failed.")
    ]
