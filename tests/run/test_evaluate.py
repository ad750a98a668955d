"""Evaluation: against a plain loop over Gymnasium with torch, and the same bytes everywhere."""

import itertools
import json
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from flame_rl import TrainConfig, Trainer
from flame_rl.actor.randomness import reset_seed
from flame_rl.run import checkpoint
from flame_rl.run.folder import CONFIG_NAME
from flame_rl.run.results import bootstrap_interval, mean_interval, student_quantile
from tests.helpers import environment_id, finished_run, refusal, run_here, run_main, run_ok, table

RUN = ("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "300", "--hidden-sizes", "16")
EVALUATED = (
    *(*RUN, "--iterations", "10", "--seed", "4", "--checkpoint-every", "4"),
    *("--learning-rate", "0.0005"),  # so that it is not perfect soon
    *("--evaluate-every", "3", "--evaluate-episodes", "5"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that evaluates after its iterations 2, 5 and 8."""
    return finished_run(tmp_path_factory, *EVALUATED, "--workers", "0")


def evaluations(run: Path) -> list[dict[str, float]]:
    return [{k: float(v) for k, v in row.items()} for row in table(run / "evaluations.csv")]


def seed_by_definition(seed: int, *key: int) -> int:
    """By definition: the first child of the episode's sequence, in 31 bits."""
    sequence = np.random.SeedSequence(seed, spawn_key=(*key, 0))
    return int(sequence.generate_state(1, np.uint32)[0]) // 2


def plain_rewards(policy: torch.nn.Module, env_id: str, seeds: list[int]) -> list[float]:
    """One environment, one step at a time, torch in double precision."""
    env = gymnasium.make(env_id)
    policy = policy.double()
    rewards = []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            row = torch.from_numpy(np.asarray(observation, np.float32)[None]).double()
            with torch.no_grad():
                (output,) = policy(row)
            if isinstance(env.action_space, gymnasium.spaces.Discrete):
                action = int(output.argmax())
            else:
                space = env.action_space
                mean = output.float().numpy()
                action = np.clip(mean * space.high, space.low, space.high)  # -high to high
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        rewards.append(total)
    return rewards


# What is measured


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "InvertedPendulum-v5"])
def test_an_evaluation_is_a_plain_loop_with_torch(env_id, tmp_path):
    config = TrainConfig(
        env=env_id, algorithm="ppo", local=True, workers=0, episodes_per_iter=5, iterations=1
    )
    with Trainer(config) as trainer:
        trainer.train()
        measured = trainer.evaluate(11, seed=5)
        policy = trainer.learner.parts["policy"]
    seeds = [seed_by_definition(5, 0, index, 3) for index in range(11)]
    expected = sorted(plain_rewards(policy, env_id, seeds))
    assert measured.episodes == 11
    assert measured.reward_mean == pytest.approx(sum(expected) / 11, rel=1e-5)
    assert measured.reward_median == pytest.approx(expected[5], rel=1e-5)
    assert measured.reward_min == pytest.approx(expected[0], rel=1e-5)
    assert measured.reward_max == pytest.approx(expected[-1], rel=1e-5)
    assert measured.reward_low <= measured.reward_mean <= measured.reward_high
    if env_id == "CartPole-v1":
        assert measured.length_mean == measured.reward_mean
    if env_id == "Pendulum-v1":
        assert measured.length_mean == 200


def test_exploring_is_what_training_does():
    """The same policy, sampled: of the same distribution as the training's episodes."""
    config = TrainConfig(local=True, workers=0, episodes_per_iter=300, iterations=1)
    with Trainer(config) as trainer:
        explored = trainer.evaluate(300, explore=True)
        greedy = trainer.evaluate(300)
        trained = trainer.train()
    spread = trained.reward_std / np.sqrt(300)
    assert explored.reward_mean == pytest.approx(trained.reward_mean, abs=5 * spread)
    assert abs(greedy.reward_mean - trained.reward_mean) > 5 * spread


@pytest.mark.parametrize("length", [{"iterations": 3}, {"env_steps": 120}])
def test_the_last_policy_is_always_evaluated(length):
    config = TrainConfig(
        **({"local": True, "workers": 0, "episodes_per_iter": 2, "evaluate_episodes": 2} | length),
        **{"evaluate_every": 2, "hidden_sizes": (4,)},
    )
    with Trainer(config) as trainer:
        results = list(trainer)
    evaluated = [result.iteration for result in results if result.evaluation is not None]
    last = len(results) - 1
    assert evaluated == sorted({*range(1, last, 2), last})


def test_the_seeds_of_the_streams_never_meet():
    seeds = [
        reset_seed(7, iteration, index, stream)
        for iteration, index in itertools.product(range(6), range(40))
        for stream in ("training", "validation", "evaluation")
    ]
    assert len(set(seeds)) == len(seeds)
    for ending, stream in (((), "training"), ((2,), "validation"), ((3,), "evaluation")):
        assert reset_seed(7, 3, 4, stream) == seed_by_definition(7, 3, 4, *ending)


# The interval


@pytest.mark.parametrize("episodes", [2, 3, 5, 10, 30])
def test_the_interval_of_few_episodes_has_the_mean_as_often_as_it_says(episodes):
    samples = np.random.default_rng(episodes).normal(5.0, 3.0, (20_000, episodes))
    intervals = np.array([mean_interval(sample) for sample in samples])
    covered = (intervals[:, 0] <= 5.0) & (intervals[:, 1] >= 5.0)
    assert covered.mean() == pytest.approx(0.95, abs=0.006)


def test_a_single_episode_has_no_interval_and_many_have_the_bootstraps():
    assert mean_interval(np.array([7.0])) == (None, None)
    many = np.random.default_rng(0).exponential(1.0, 31)
    assert mean_interval(many) == bootstrap_interval(many)


def test_students_quantiles_are_those_of_the_tables():
    table = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 10: 2.228, 15: 2.131, 30: 2.042, 120: 1.980}
    for freedom, expected in table.items():
        assert student_quantile(freedom) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("values", [(1.0, 5.0, 6.0, 9.0), (0.0, 0.0, 0.0, 10.0), (2.0, 2.0, 2.0)])
def test_the_interval_against_all_resamples_there_are(values):
    """Of four values there are only 256 samples; the exact quantiles follow by counting."""
    means = sorted(sum(s) / len(s) for s in itertools.product(values, repeat=len(values)))
    low, high = bootstrap_interval(np.array(values))
    for measured, share in ((low, 0.025), (high, 0.975)):
        # Where a mean is as likely as that, sampling may fall to either side.
        near = [means[int(len(means) * s)] for s in (share - 0.01, share + 0.01)]
        assert near[0] <= measured <= near[1]


# The command


def test_the_command_prints_for_people_and_for_programs(whole, tmp_path):
    words = ("evaluate", str(whole), "--episodes", "12", "--local")
    text = run_ok(*words, "--workers", "0", cwd=tmp_path)
    assert text.stderr == ""
    outputs = {
        run_here(*words, "--json", "--workers", workers, cwd=tmp_path).stdout
        for workers in ("0", "2")
    }
    (line,) = outputs
    result = json.loads(line)
    assert {k: result.pop(k) for k in ("env", "algorithm", "iterations", "explore", "seed")} == {
        "env": "CartPole-v1",
        "algorithm": "ppo",
        "iterations": 10,
        "explore": False,
        "seed": 0,
    }
    lines = text.stdout.splitlines()
    assert lines[0] == "PPO on CartPole-v1 after 10 iterations, 12 episodes, actions deterministic"
    assert lines[1] == (
        f"  Mean return: {result['reward_mean']:.1f} "
        f"(95 %: {result['reward_low']:.1f} to {result['reward_high']:.1f})"
    )
    names = ("reward_median", "reward_min", "reward_max", "length_mean")
    assert [line.split()[-1] for line in lines[2:]] == [f"{result[name]:.1f}" for name in names]


def test_the_commands_options(whole, tmp_path):
    def evaluate(*flags, run=whole):
        words = ("evaluate", str(run), "--episodes", "6", "--local", "--workers", "0", "--json")
        done = run_ok(*words, *flags, cwd=tmp_path)
        return json.loads(done.stdout)

    plain = evaluate()
    assert evaluate("--seed", "1")["reward_mean"] != plain["reward_mean"]
    assert evaluate("--explore")["reward_mean"] != plain["reward_mean"]
    best = checkpoint.read_checkpoint(whole / "checkpoints" / "best.ckpt")
    assert evaluate("--best")["iterations"] == best.totals.iterations
    assert evaluate(run=whole / "checkpoints" / "00000008.ckpt")["iterations"] == 8
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [], "an evaluation writes nothing"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "run"),
        (["evaluate", "empty", "--episodes", "0"], "--episodes: at least 1"),
        (["evaluate", "empty", "--seed", "-1"], "--seed: an integer from 0"),
        (
            ["evaluated", "empty"],
            "evaluated: no command; did you mean evaluate? Without one, training",
        ),
        (["--evaluate-every", "0"], "--evaluate-every: at least 1"),
        (["--evaluate-episodes", "0"], "--evaluate-episodes: at least 1"),
    ],
)
def test_mistakes_get_a_clear_error(words, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    assert message in refusal(*words, cwd=tmp_path)


def test_on_a_cluster_it_is_the_same(memory, whole, tmp_path):
    words = ("evaluate", str(whole), "--episodes", "30", "--json")
    there = run_main(*words, cwd=tmp_path, environment=memory.environment)
    here = run_here(*words, "--workers", "0", cwd=tmp_path)
    assert there.returncode == 0 and there.stderr == "" and there.stdout == here.stdout
    memory.assert_nothing_left()


# While training


def test_evaluating_changes_nothing_of_the_training(whole, tmp_path):
    plain = EVALUATED[: EVALUATED.index("--evaluate-every")]
    run_ok(*plain, "--workers", "0", "--output", "run", cwd=tmp_path)
    for name in ("metrics.csv", "weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()
    assert not (tmp_path / "run" / "evaluations.csv").exists()


def test_an_evaluation_is_of_the_weights_after_its_iteration(whole):
    rows = evaluations(whole)
    assert [row["iteration"] for row in rows] == [2, 5, 8, 9]
    config = TrainConfig.from_json((whole / CONFIG_NAME).read_text())
    best = checkpoint.read_checkpoint(whole / "checkpoints" / "best.ckpt")
    iteration = best.totals.iterations - 1
    with Trainer.load(whole, best=True, workers=0) as trainer:
        seeds = [
            seed_by_definition(config.experiment.seed, iteration, index, 2) for index in range(5)
        ]
        policy = trainer.learner.parts["policy"]
    expected = plain_rewards(policy, "CartPole-v1", seeds)
    (row,) = (row for row in rows if row["iteration"] == iteration)
    assert row["reward_mean"] == sum(expected) / 5 == best.score
    assert (row["reward_min"], row["reward_max"]) == (min(expected), max(expected))
    assert row["episodes"] == 5 and row["env_steps"] == best.totals.env_steps


def killed(whole: Path, run: Path, iterations: int, saved: int) -> None:
    """What is on disk after so many iterations, of which so many are in a checkpoint."""
    shutil.copytree(whole, run)
    files = {
        "metrics.csv": iterations,
        "timing.csv": iterations,
        "evaluations.csv": iterations // 3,
    }
    for name, rows in files.items():
        lines = (whole / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(b"".join(lines[: rows + 1]))
    for path in (run / "checkpoints").iterdir():
        done = checkpoint.read_checkpoint(path).totals.iterations
        if done > (iterations if path.name == "best.ckpt" else saved):
            path.unlink()


@pytest.mark.parametrize(
    ("iterations", "saved", "workers"), [(2, 0, "2"), (6, 4, "0"), (9, 8, "0")]
)
def test_evaluations_survive_a_resume(iterations, saved, workers, whole, tmp_path):
    run = tmp_path / "run"
    killed(whole, run, iterations, saved)
    done = run_ok("--resume", "run", "--workers", workers, cwd=tmp_path)
    assert "Going on after" in done.stdout or saved == 0
    for name in ("metrics.csv", "evaluations.csv", "weights.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    best = [checkpoint.read_checkpoint(r / "checkpoints" / "best.ckpt") for r in (run, whole)]
    assert best[0].score == best[1].score and best[0].totals == best[1].totals


def test_an_evaluation_that_fails_names_itself_and_offers_no_reproduction(tmp_path):
    seed = reset_seed(0, 0, 3, "validation")
    done = run_here(
        *("--env", environment_id("Poisoned"), "--episodes-per-iter", "4", "--workers", "1"),
        *("--evaluate-every", "1", "--evaluate-episodes", "5", "--output", "run"),
        cwd=tmp_path,
        environment={"FAULT_KIND": "kill", "FAULT_SEED": str(seed)},
    )
    assert done.returncode == 1
    assert "an evaluation episode failed in 3 attempts" in done.stderr
    assert f"episode 3, seed {seed}" in done.stderr
    assert "--reproduce" not in done.stderr
