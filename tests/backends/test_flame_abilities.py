"""Runs on Flame that begin with another run or demonstrations, that have goals, or a policy that
observes less than its critic, and several that share a cluster: each has the bytes of this machine.

Against the in-memory Flame always; marked `cluster`, the same tests against a real one.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.flame_fixtures import Flame, finish, run, start
from tests.helpers import SOON, run_here
from tests.runs import assert_saved_weights, rows

PPO = ("--env", "cartpole", "--algorithm", "ppo", "--iterations", "3", "--steps-per-iter", "60")
DQN = ("--env", "cartpole", "--algorithm", "dqn", *PPO[4:], "--hidden-sizes", "8")
REPLAY = ("--warm-up-steps", "60", "--updates-per-step", "0.2", "--batch-size", "16")
GOALS = ("--env", "goals:Bits-v1", "--hidden-sizes", "8", "--iterations", "3")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run of dqn, "old", and episodes of it, "teacher.npz"."""
    folder = tmp_path_factory.mktemp("before")
    here = ("--local", "--workers", "0")
    record = ["evaluate", "old", "--episodes", "4", "--record", "teacher.npz"]
    for words in ((*DQN, *REPLAY, "--output", "old"), record):
        done = run_here(*words, *here, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((*DQN, *REPLAY, "--from", "{}/old", "--with-replay"), marks=pytest.mark.slow),
        pytest.param((*DQN, *REPLAY, "--demonstrations", "{}/teacher.npz"), marks=pytest.mark.slow),
        (*GOALS, "--algorithm", "dqn", "--hindsight", "future", *REPLAY),
        pytest.param(
            (*GOALS, "--algorithm", "ppo", "--policy-observations", "observation", "desired_goal"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["from", "demonstrations", "hindsight", "policy-observations"],
)
def test_a_run_with_more_than_an_environment_has_the_bytes_of_this_machine(
    flags: tuple[str, ...], flame: Flame, project: Path, local, tmp_path: Path, request
) -> None:
    if any("{}" in flag for flag in flags):
        before = request.getfixturevalue("before")
        flags = tuple(flag.format(before) for flag in flags)
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    assert "using Flame Runner" in finished.out and finished.err == ""
    assert finished.metrics == local(*flags)
    assert_saved_weights(finished.folder)
    flame.assert_nothing_left()


@pytest.mark.slow
def test_several_seeds_share_a_cluster(flame: Flame, project: Path, local, tmp_path: Path) -> None:
    finished = run(project, tmp_path, flame.environment, *PPO, "--seeds", "1", "2")
    assert finished.code == 0, finished.err
    for seed in ("1", "2"):
        folder = finished.folder / f"seed-{seed}"
        assert (folder / "metrics.csv").read_bytes() == local(*PPO, "--seed", seed)
        assert_saved_weights(folder)
        assert "using Flame Runner" in folder.with_suffix(".txt").read_text()
    flame.assert_nothing_left()


@pytest.mark.slow
def test_a_study_on_a_cluster_that_is_killed_and_resumed_is_that_of_this_machine(
    flame: Flame, project: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna", reason="uv run --group tune pytest")
    words = ("tune", *PPO[:4], "--env-steps", "600", "--steps-per-iter", "60", "--trials", "4")
    words += ("--search", "learning-rate", "epochs", "--parallel", "2")
    done = run_here(*words, "--local", "--output", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    process = start(project, tmp_path, flame.environment, *words)
    study, until = tmp_path / "run", time.monotonic() + 4 * SOON
    while not all(rows(study / f"trial-00{number}") > 2 for number in (0, 1)):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = finish(
        start(project, tmp_path, flame.environment, "tune", "--resume", "run"), tmp_path
    )
    assert finished.code == 0, finished.err
    for number in range(4):
        assert (study / f"trial-00{number}" / "metrics.csv").read_bytes() == (
            tmp_path / "here" / f"trial-00{number}" / "metrics.csv"
        ).read_bytes()
        assert "using Flame Runner" in (study / f"trial-00{number}.txt").read_text()
    assert trials_of(study) == trials_of(tmp_path / "here")
    flame.assert_nothing_left()


def trials_of(study: Path) -> list[tuple]:
    """Settings, values and end of each trial."""
    lines = [json.loads(line) for line in (study / "trials.log").read_text().splitlines()]
    return [(t["params"], t["intermediate_values"], t["state"]) for t in lines if "params" in t]
