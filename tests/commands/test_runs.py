"""`main.py runs`: the runs of a folder, at any depth, and what is no run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flame_rl.commands.runs import runs
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from tests.helpers import ROOT, clean_environment
from tests.runs import write_run

# Holds the folder's lock as training does, says so, and waits to be killed.
HOLD = """
import sys, time
from flame_rl.run.folder import hold_folder
from flame_rl.settings.config import TrainConfig
with hold_folder(TrainConfig(resume=sys.argv[1])):
    print("held", flush=True)
    time.sleep(1000)
"""


def make(folder: Path, rewards: list[float], evaluations=(), **settings) -> Path:
    config = TrainConfig(**{"iterations": 4, **settings})
    return write_run(folder, config, rewards, evaluations=evaluations)


@pytest.fixture
def folder(tmp_path) -> Path:
    make(tmp_path / "a", [1, 3, 2, 2.5], seed=3)
    make(tmp_path / "b", [1, 2], env="hopper", algorithm="ppo", steps_per_iter=100)
    every = {"evaluate_every": 2}
    make(tmp_path / "seeds" / "0", [1, 2, 3], [(1, 40.0)], seed=0, **every)
    make(tmp_path / "seeds" / "1", [9, 9, 9, 9], [(1, 60.0), (3, 50.0)], seed=1, **every)
    make(tmp_path / "early", [7, 8], stop_at=8)
    make(tmp_path / "empty", [])
    (tmp_path / "notes").mkdir()
    make(tmp_path / "torn", [1]).joinpath("metrics.csv").write_text("iteration,reward_mean\nx,y\n")
    return tmp_path


def listed(capsys, *words: str) -> list[dict[str, object]]:
    runs([*words, "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_run_is_a_row_and_what_is_none_is_named(folder, capsys):
    runs([str(folder)])
    done = capsys.readouterr()
    header, *lines = done.out.splitlines()
    assert " ".join(header.split()) == (
        "env algorithm seed env steps score last best seconds state run"
    )
    rows = [line.split() for line in lines]
    assert [Path(row[-1]).name for row in rows] == ["a", "b", "early", "empty", "0", "1"]
    assert [" ".join(row[:-1]) for row in rows] == [
        "CartPole-v1 reinforce 3 400 training 2.5 3.0 9.0 done",
        "Hopper-v5 ppo 0 200 training 2.0 2.0 4.5 interrupted",
        "CartPole-v1 reinforce 0 200 training 8.0 8.0 4.5 done",
        "CartPole-v1 reinforce 0 0 training - - 0.0 interrupted",
        "CartPole-v1 reinforce 0 300 evaluation 40.0 40.0 6.8 interrupted",
        "CartPole-v1 reinforce 1 400 evaluation 50.0 60.0 9.0 done",
    ]
    told = done.err.splitlines()
    assert [line.partition(" holds no run")[0] for line in told] == [
        f"warning: {folder / 'torn'}",
        f"warning: {folder / 'notes'}",
    ]


def test_an_order_and_a_choice_can_be_asked_for(folder, capsys):
    two = str(folder / "a"), str(folder / "b")

    def names(*words: str) -> list[str]:
        return [Path(str(row["run"])).name for row in listed(capsys, str(folder), *words)]

    assert [Path(str(row["run"])).name for row in listed(capsys, *two, *two[:1])] == ["a", "b"]
    assert names("--sort", "best") == ["1", "0", "early", "a", "b", "empty"]
    assert names("--sort", "env-steps")[:2] == ["a", "1"]
    assert names("--sort", "seed")[-2:] == ["1", "a"]
    assert names("--env", "hopper") == names("--algorithm", "ppo") == ["b"]
    assert names("--env", "CartPole-v1", "--algorithm", "ppo") == []
    with pytest.raises(UsageError, match="--sort: run, env, "):
        runs([str(folder), "--sort", "speed"])


def test_a_run_is_running_while_a_process_holds_its_folder_however_that_ends(folder, capsys):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / "b")],
        env=clean_environment(folder) | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        states = {row["run"]: row["state"] for row in listed(capsys, str(folder))}
        assert states[str(folder / "b")] == "running"
        assert list(states.values()).count("running") == 1
    finally:
        process.kill()
        process.wait()
    states = {row["run"]: row["state"] for row in listed(capsys, str(folder))}
    assert states[str(folder / "b")] == "interrupted"


def test_a_link_that_leads_back_is_not_followed(folder, capsys):
    (folder / "notes" / "up").symlink_to(folder)
    assert len(listed(capsys, str(folder))) == 6


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.*name a folder of runs"):
        runs([str(tmp_path / "nowhere")])
