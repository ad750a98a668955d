"""The benchmarks' tables, and that a quick one runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import collection, learning, replay, table, unseen
from benchmarks.peers import __main__ as peers
from benchmarks.peers import sequences_ours, update_ours
from benchmarks.peers.work import SEQUENCES, SequenceData, UpdateData, make_unseen, play
from flame_rl.learner.training.device import reproducible
from flame_rl.settings.presets import PRESETS
from tests.helpers import ROOT
from tests.helpers import table as read_table


def test_rows_are_measured_in_turn():
    calls: list[tuple[str, int]] = []
    rows = {name: lambda k, name=name: calls.append((name, k)) or len(calls) for name in "ab"}
    assert table.in_turn(rows, 2) == {"a": [1, 3], "b": [2, 4]}
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_ratios_compare_rows_of_the_same_repetition(tmp_path):
    """Medians of both rows, 20 and 20, would say 1."""
    rates = {"new": [10.0, 20.0, 60.0], "old": [20.0, 5.0, 30.0]}
    compared = table.compare("title", "steps per second", rates, [("new", "old")])
    assert compared.ratios[0].spread == (0.5, 2.0, 4.0)
    assert str(compared).splitlines()[-1].split() == ["new", "/", "old", "0.500", "2.000", "4.000"]
    table.write("name", [compared], tmp_path / "made")
    written = json.loads((tmp_path / "made" / "name.json").read_text())
    (ratio,) = written["tables"][0]["ratios"]
    assert (ratio["minimum"], ratio["median"], ratio["maximum"]) == (0.5, 2.0, 4.0)
    assert written["tables"][0]["rates"] == rates
    assert (tmp_path / "made" / "name.png").read_bytes().startswith(b"\x89PNG")


def test_collection_quickly(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(collection, "CASES", (("cartpole", 1, 16, 80),))
    collection.main(collection.Options(("cartpole",), quick=True, output=tmp_path))
    printed = capsys.readouterr().out
    assert re.search(r"CartPole-v1, 16 episodes of \d+ steps, 2 repetitions, by CPU time", printed)
    by_cpu, by_clock = json.loads((tmp_path / "collection.json").read_text())["tables"]
    rows = {"bare", "plain", "fast", "1 worker", "2 workers", "2 apart"}
    assert set(by_cpu["rates"]) == rows
    assert all(rate > 0 for rates in by_cpu["rates"].values() for rate in rates)
    pairs = [("2 workers", "1 worker"), ("2 apart", "fast"), ("2 workers", "2 apart")]
    assert [(r["of"], r["over"]) for r in by_clock["ratios"]] == pairs


def test_replay_quickly(tmp_path, capsys):
    replay.main(replay.Options(capacity=5000, quick=True, output=tmp_path))
    assert "5,000 steps of HalfCheetah-v5 need" in capsys.readouterr().out
    reading, prioritizing = json.loads((tmp_path / "replay.json").read_text())["tables"]
    views = {"transitions", "3 steps", "sequences"}
    assert set(reading["rates"]) == {"five arrays", "one row", *views}
    assert set(prioritizing["rates"]) == {"running sum", "draw", "update", "add"}


def test_the_readme_shows_the_learning_table():
    """The evaluations of docs/learning, which are made of results.csv."""
    folder = ROOT / "docs" / "learning"
    rows = read_table(folder / "results.csv")
    lines = [
        line.strip("| ").split(" | ") for line in (folder / "README.md").read_text().split("\n")
    ]
    cells = {tuple(words[:2]): words[4] for words in lines if len(words) == 6}
    assert learning.by_cell(rows).keys() <= cells.keys()
    for env in learning.ENVIRONMENTS:
        shown = " | ".join(cells[env, name] for name in learning.ALGORITHMS)
        assert f"| {env} | {shown} |\n" in (ROOT / "README.md").read_text()
    commands = {shlex.join(run.command) for run in learning.table(learning.Options())}
    made = {row["command"] for row in rows if row["commit"] != "not recorded"}
    assert made <= commands


def test_the_interquartile_mean_is_that_of_the_middle_half():
    pytest.importorskip("rliable")
    scores = np.array([1.0, 90.0, 2.0, 4.0, -50.0, 3.0, 2.0, 5.0])
    mean, low, high = learning.interquartile_mean(scores)
    assert mean == (2 + 2 + 3 + 4) / 4
    assert -50 < low < mean < high < 90
    np.random.random()  # what others draw changes no interval
    assert learning.interquartile_mean(scores) == (mean, low, high)


def test_no_preset_is_for_what_nobody_tuned():
    """LunarLander-v3 and Acrobot-v1 have presets for dqn."""
    runs = unseen.table(unseen.Options(seeds=(0,), packages=(unseen.HERE,)))
    assert {run.env for run in runs} == set(unseen.TASKS)
    assert len(runs) == 2 * len(unseen.TASKS)
    assert not [run for run in runs if run.env_id in PRESETS[run.algorithm]]
    commands = [run.command() for run in runs]
    assert (
        "--env gymnasium:FrozenLake-v1 --env-kwargs is_slippery=false --algorithm dqn "
        "--env-steps 20000 --seed 0"
    ) in commands


def test_an_unseen_policy_is_judged_by_whole_episodes():
    """In CliffWalking, which has no limit of its own, the shortest way has 13 steps; standing
    still costs 1 a step until the limit."""
    way = [0, *[1] * 11, 2]
    steps = iter(way * 2)
    env = make_unseen("gymnasium:CliffWalking-v1", {})
    assert play(env, lambda observation, info: next(steps), 2) == [-13, -13]
    env = make_unseen("gymnasium:CliffWalking-v1", {})
    assert play(env, lambda observation, info: 3, 1) == [-1000]


def test_unseen_results_are_added_up(tmp_path):
    pytest.importorskip("rliable")

    def write(package: str, *scores: float) -> None:
        row = {"env": "Taxi-v4", "algorithm": "ppo", "package": package}
        rows = [row | {"seed": k, "score": score} for k, score in enumerate(scores)]
        unseen.write_results(rows, tmp_path)

    write(unseen.HERE, 7.5, 7.75, 8)
    write(unseen.THERE, -200, -1000, 9)
    write(unseen.THERE, -200, -190, -210)  # in their place
    lines = (tmp_path / "unseen.md").read_text().splitlines()
    (taxi,) = [line for line in lines if line.startswith("| Taxi-v4 | ppo")]
    cells = taxi.strip("| ").split(" | ")
    assert cells[2:4] == ["50,000", "7.75 (7.50 to 8.00)"]
    assert cells[4:6] == ["-200.00 (-210.00 to -190.00)", "above"]
    assert cells[6:] == ["7.50, 7.75, 8.00", "-200.00, -190.00, -210.00"]
    by_ppo, by_dqn, _ = lines[-1].removeprefix("Not run yet: ").split("; ")
    assert by_ppo.startswith("ppo in ") and "Taxi-v4" not in by_ppo
    assert by_dqn.startswith("dqn in ") and "Taxi-v4" in by_dqn
    assert unseen.verdict((1, 0, 2), (4, 3, 5)) == "below"
    assert unseen.verdict((1, 0, 3.5), (4, 3, 5)) == "below"
    assert unseen.verdict((3.2, 0, 3.5), (4, 3, 5)) == "level"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not on this system")
def test_a_peer_runs_on_so_many_cores():
    count = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    before = os.sched_getaffinity(0)
    with peers.limited_to(1):
        assert int(subprocess.check_output(count)) == 1
    assert os.sched_getaffinity(0) == before
    assert int(subprocess.check_output(count)) == len(before)


@pytest.mark.filterwarnings("error")
def test_minibatch_steps_are_counted(monkeypatch):
    monkeypatch.setattr(UpdateData, "epochs", 2)
    with reproducible("cpu", seed=0):
        assert update_ours.epochs_of(1_000)() == 8
        assert update_ours.epochs_of(64)() == 2 * 62


@pytest.mark.parametrize("memory", SEQUENCES.values())
def test_gradient_steps_of_sequences_are_counted(memory, monkeypatch):
    monkeypatch.setattr(SequenceData, "repeats", 2)
    with reproducible("cpu", seed=0):
        assert sequences_ours.steps_of(memory)() == 2


def test_modules_of_other_environments_do_without_this_package():
    """Their environments have its requirements only by chance."""
    folder = Path(peers.__file__).parent
    apart = (
        *("work", "sb3", "sbx", "replay_sb3", "replay_sbx", "update_jax", "sequences_jax"),
        *("agents_sb3", "rllib", "unseen_sb3"),
    )
    texts = {name: (folder / f"{name}.py").read_text() for name in apart}
    assert [name for name, text in texts.items() if "from flame_rl" in text] == []
