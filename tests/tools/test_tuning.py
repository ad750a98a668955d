"""Studies: the same from the same seed, whatever dies in between; their file; what is suggested."""

from __future__ import annotations

import fcntl
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="uv run --group tune pytest")

from flame_rl.run.folder import read_config, write_config
from flame_rl.settings.checks import Among, Span
from flame_rl.settings.parse import parse
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.signals import StopSignal
from flame_rl.tools.study import tuning
from flame_rl.tools.study.pruning import RUNGS
from flame_rl.tools.study.trials import Trial, TrialsFile, importances, suggest
from flame_rl.tools.study.tuning import Study, run_trials

WORDS = ("--env", "cartpole", "--algorithm", "ppo", "--env-steps", "800")
RANGES = {"learning_rate": Span(1e-5, 1e-2, log=True), "gamma": Among("0.9", "0.99")}

# Stands for a training: a row for each hundred steps, of returns that the settings decide.
RUN = """
import fcntl, signal, sys, time
from pathlib import Path
folder, level, seconds = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
lock = (folder / ".lock").open("ab")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
if level < -3:
    print("error: too far", flush=True)
    sys.exit(1)
with (folder / "metrics.csv").open("w") as file:
    print("iteration,env_steps,reward_mean", file=file, flush=True)
    for i in range(9):
        print(f"{i},{100 * (i + 1)},{level * (9 - i)}", file=file, flush=True)
        time.sleep(seconds)
"""


class DiedError(Exception):
    """The process of the study, at this moment."""


@pytest.fixture
def runs(monkeypatch):
    """Trials that take no training; the processes that were started."""
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], prints: Path) -> subprocess.Popen[bytes]:
        if words[0] == "--resume":
            folder = Path(words[1])
        else:
            folder = Path(words[words.index("--output") + 1])
            folder.mkdir(exist_ok=True)
            write_config(folder, parse(words)[0])
        rate = read_config(folder).algorithm.learning_rate
        level = -abs(np.log10(rate) + 3) - rate
        # Each takes another time, so that the trials end in another order than they begin.
        seconds = 0.004 * (len(started) % 3)
        with prints.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-IS", "-c", RUN, str(folder), str(level), str(seconds)],
                stdout=file,
            )
        started.append(process)
        return process

    monkeypatch.setattr(tuning, "start_run", start)
    monkeypatch.setattr(tuning, "_POLL_SECONDS", 0.01)
    yield started
    for process in started:
        process.kill()
        process.wait()


def search_in(folder: Path, parallel: int = 2, trials: int = 13, words=WORDS, pruner="median"):
    """A study of a learning rate, as the command makes it."""
    from flame_rl.commands.tune import _search

    folder.mkdir(exist_ok=True)
    study = Study(tuple(words), ("learning-rate", "gamma"), trials, parallel, pruner)
    found = _search(study, parse(words)[0])
    return tuning.replace(found, folder=folder)


def test_a_study_is_the_same_whatever_dies(runs, tmp_path, monkeypatch, capsys):
    whole = run_trials(search_in(tmp_path / "whole"), StopSignal())
    assert {trial.state for trial in whole} == {"done", "pruned"}
    assert [trial.number for trial in whole] == list(range(13))
    again = run_trials(search_in(tmp_path / "again"), StopSignal())
    assert again == whole

    # It dies before a trial is written, and when a run has just begun, of several trials.
    moments = {(TrialsFile, "add"): (2, 3, 3), (tuning, "start_run"): (2, 3, 1)}
    search = search_in(tmp_path / "killed")
    for (place, name), counts in moments.items():
        for count in counts:
            function, left = getattr(place, name), [count]

            def dying(*arguments, function=function, left=left):
                left[0] -= 1
                if not left[0]:
                    if function is not TrialsFile.add:
                        function(*arguments)
                    raise DiedError
                return function(*arguments)

            with monkeypatch.context() as patched, pytest.raises(DiedError):
                patched.setattr(place, name, dying)
                run_trials(search, StopSignal())
    assert run_trials(search, StopSignal()) == whole


def test_a_trial_depends_on_those_that_were_finished_before_it_began_by_the_rule(runs, tmp_path):
    """And not on those that happened to be finished."""
    search = search_in(tmp_path / "study", parallel=3, trials=14)
    trials = run_trials(search, StopSignal())
    for trial in trials[1:]:
        seen = trials[: max(0, trial.number - 2)]
        assert trial.settings == suggest(search.ranges, 0, trial.number, seen)


def test_a_run_that_a_signal_ended_goes_on_and_one_that_fails_is_a_failed_trial(
    runs, tmp_path, monkeypatch, capsys
):
    start = tuning.start_run

    def killed_once(words, prints):
        if len(runs) != 1:
            return start(words, prints)
        folder = Path(words[words.index("--output") + 1])
        folder.mkdir()
        # Until it is killed, it waits for the lock, and writes nothing.
        with (folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = start(words, prints)
            process.kill()
            process.wait()
        return process

    monkeypatch.setattr(tuning, "start_run", killed_once)
    words = (*WORDS, "--learning-rate", "1e-7")
    trials = run_trials(search_in(tmp_path / "study", 1, 4, words), StopSignal())
    assert len(runs) == 5
    assert trials[0].state == "failed" and "error: too far" in capsys.readouterr().out
    assert trials[1].state == "done"
    assert trials[0].settings["learning_rate"] == 1e-7


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (1, RunError, r"first 3 trials failed; .*trial-000.txt"),
        # A mistake in the command, which is every trial's.
        (2, UsageError, r"^no such environment$"),
    ],
)
def test_trials_that_fail_from_the_first_on_end_the_study(
    tmp_path, monkeypatch, code, kind, message
):
    def fails(words, prints):
        prints.write_text("Trying\nerror: no such environment\n")
        return subprocess.Popen([sys.executable, "-IS", "-c", f"raise SystemExit({code})"])

    monkeypatch.setattr(tuning, "start_run", fails)
    with pytest.raises(kind, match=message):
        run_trials(search_in(tmp_path / "study", 1, 5), StopSignal())


def test_settings_that_another_version_chose_are_refused(runs, tmp_path):
    search = search_in(tmp_path / "study", 1, 2)
    run_trials(search, StopSignal())
    (tmp_path / "study" / "trials.log").unlink()
    changed = read_config(search.run_of(1)).changed(learning_rate=0.5)
    write_config(search.run_of(1), changed)
    with pytest.raises(UsageError, match=r"trial-001 has other settings .*--learning-rate 0.5"):
        run_trials(search, StopSignal())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"gamma":1', '"gamma":7'),
        lambda text: text.replace('"1":', '"3":'),
        lambda text: text.replace('"2":', '"2":NaN,"x":'),
        lambda text: text + "{}\n",
        lambda text: text[:300] + "\n" + text[300:],
        lambda text: text.replace("learning_rate", "learning_late"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "trials.log"
    journal = TrialsFile(path, RANGES)
    for number in range(2):
        journal.add(Trial(number, {"learning_rate": 1e-3, "gamma": "0.99"}, (1.0, 2.0)))
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    with pytest.raises(UsageError, match=r"trials\.log: no trials of this study"):
        TrialsFile(path, RANGES)


def test_half_a_line_is_dropped_and_written_again(tmp_path):
    path = tmp_path / "trials.log"
    trials = [
        Trial(0, {"learning_rate": 1e-3, "gamma": "0.99"}, (1.0,) * RUNGS),
        Trial(1, {"learning_rate": 1e-3, "gamma": "0.9"}, (), failed=True),
        Trial(2, {"learning_rate": 2e-3, "gamma": "0.9"}, (1.0, 2.0)),
    ]
    journal = TrialsFile(path, RANGES)
    for trial in trials:
        journal.add(trial)
    assert TrialsFile(path, RANGES).trials == trials
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    journal = TrialsFile(path, RANGES)
    assert journal.trials == trials[:2]
    journal.add(trials[2])
    assert TrialsFile(path, RANGES).trials == trials


def test_what_is_suggested_is_in_its_range_and_nearer_to_what_was_good():
    def trial(number: int, settings) -> Trial:
        distance = abs(np.log10(settings["learning_rate"]) + 3)
        return Trial(number, settings, (-distance,) * RUNGS)

    ranges = RANGES | {"epochs": Span(1, 20, log=True), "clip_range": Span(0.1, 0.4)}
    trials: list[Trial] = []
    for number in range(60):
        settings = suggest(ranges, 5, number, trials)
        assert settings == suggest(ranges, 5, number, trials)
        assert list(settings) == list(ranges)
        assert settings["gamma"] in RANGES["gamma"].words
        assert type(settings["epochs"]) is int and 1 <= settings["epochs"] <= 20
        assert 1e-5 <= settings["learning_rate"] <= 1e-2 and 0.1 <= settings["clip_range"] <= 0.4
        trials.append(trial(number, settings))
    errors = [-each.score for each in trials]
    assert np.mean(errors[40:]) < 0.5 * np.mean(errors[:10])
    assert suggest(ranges, 6, 3, []) != suggest(ranges, 5, 3, []) != suggest(ranges, 5, 4, [])
    shares = importances(ranges, trials)
    assert next(iter(shares)) == "learning_rate" and shares["learning_rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(ranges, trials[:1]) == {}


def test_no_pickle_is_read(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    path = tmp_path / "trials.log"
    TrialsFile(path, RANGES).add(Trial(0, {"learning_rate": 1e-3, "gamma": "0.9"}, (1.0,) * RUNGS))
    assert suggest(RANGES, 0, 1, TrialsFile(path, RANGES).trials)
