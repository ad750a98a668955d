"""Studies: the same from the same seed, what goes on after an end, and their final."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="uv run --group tune pytest")

import optuna
from optuna.trial import TrialState

from flame_rl.run.folder import read_config, write_config
from flame_rl.settings.parse import parse
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.signals import StopSignal
from flame_rl.tools import side_runs, trials
from flame_rl.tools.study import Search, Study, with_effect
from flame_rl.tools.trials import (
    RUNGS,
    begin_trial,
    best_of,
    draw_study,
    open_study,
    run_finals,
    run_trials,
)

WORDS = ("--env", "cartpole", "--algorithm", "ppo", "--env-steps", "800", "--seed", "4")

# Stands for a training: a row for each hundred steps, of returns that the settings decide.
RUN = """
import fcntl, signal, sys, time
from dataclasses import replace
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

    def start(words: tuple[str, ...], prints: Path) -> subprocess.Popen[bytes]:
        folder = Path(words[1])
        if words[0] != "--resume":
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

    monkeypatch.setattr(side_runs, "start_process", start)
    monkeypatch.setattr(trials, "_POLL_SECONDS", 0.03)
    yield started
    for process in started:
        process.kill()
        process.wait()


def search_in(folder: Path, parallel: int = 2, count: int = 13, words=WORDS, **options):
    """A study of a learning rate, as the command makes it."""
    folder.mkdir(exist_ok=True)
    options = {"search": ("learning-rate", "gamma"), "pruner": "median"} | options
    study = Study(trials=count, parallel=parallel, words=tuple(words), **options)
    return Search.of(study, parse(words)[0], folder)


def told(found) -> list[tuple]:
    return [(each.params, each.intermediate_values, each.state) for each in found]


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_study_is_the_same_however_long_each_trial_takes(runs, tmp_path, pruner):
    whole = run_trials(search_in(tmp_path / "whole", pruner=pruner), StopSignal())
    assert [trial.number for trial in whole] == list(range(13))
    assert {trial.state for trial in whole} == {TrialState.COMPLETE, TrialState.PRUNED}
    again = run_trials(search_in(tmp_path / "again", pruner=pruner), StopSignal())
    assert told(again) == told(whole)
    if pruner == "median":
        drawn = [path.name for path in draw_study(whole, tmp_path)]
        assert drawn == ["best.png", "importance.png"]
        assert len(draw_study(whole[:9], tmp_path)) == 1


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        (WORDS, {"initial_log_std"}),
        (("--env", "Pendulum-v1", *WORDS[2:]), set()),
        ((*WORDS, "--shared-torso"), {"initial_log_std", "value_learning_rate"}),
        (
            (*WORDS[:3], "reinforce", *WORDS[4:], "--baseline", "none"),
            {"initial_log_std", "value_learning_rate", "value_epochs"},
        ),
    ],
)
def test_settings_without_effect_are_not_searched(tmp_path, words, left_out):
    search = search_in(tmp_path / "study", words=(*words, "--local"), search=())
    found = with_effect(search, StopSignal())
    assert set(search.ranges) - set(found) == left_out


def test_a_study_that_died_goes_on_with_the_trials_that_had_begun(runs, tmp_path, monkeypatch):
    search = search_in(tmp_path / "study")
    for place, name, count in (
        (trials, "begin_trial", 3),
        (optuna.Trial, "report", 5),
        (optuna.Study, "tell", 2),
    ):
        function, left = getattr(place, name), [count]

        def dying(*arguments, function=function, left=left, **options):
            left[0] -= 1
            if not left[0]:
                raise DiedError
            return function(*arguments, **options)

        with monkeypatch.context() as patched, pytest.raises(DiedError):
            patched.setattr(place, name, dying)
            run_trials(search, StopSignal())
    before = {each.number: each.params for each in open_study(search).trials}
    done = run_trials(search, StopSignal())
    assert [trial.number for trial in done] == list(range(13))
    assert {each.number: each.params for each in done if each.number in before} == before
    assert all(each.value is not None for each in done)
    for trial in done:
        run = read_config(tmp_path / "study" / f"trial-{trial.number:03}")
        assert run.algorithm.learning_rate == search.settings_of(trial)["learning_rate"]


def test_a_value_is_the_mean_of_a_tenth_of_the_steps_before_the_rung(tmp_path):
    search = search_in(tmp_path / "study", words=(*WORDS[:5], "1600"))
    rng = np.random.default_rng(0)
    steps, returns = np.cumsum(rng.integers(5, 40, 100)), rng.standard_normal(100)
    rows = [f"{at},{value}" for at, value in zip(steps, returns, strict=True)]
    (tmp_path / "metrics.csv").write_text("\n".join(["env_steps,reward_mean", *rows]) + "\n")
    for rung in range(1, RUNGS + 1):
        last = np.flatnonzero(steps >= 200 * rung)[0]
        some = [i for i in range(last + 1) if i == last or steps[i] > 200 * rung - 160]
        assert trials._value(search, tmp_path, rung, ended=False) == pytest.approx(
            np.mean(returns[some])
        )
    (tmp_path / "metrics.csv").write_text("env_steps,reward_mean\n10,1\n1000,2\n1100,4\n")
    assert trials._value(search, tmp_path, RUNGS, ended=False) is None
    # --stop-at ended it.
    assert trials._value(search, tmp_path, RUNGS, ended=True) == 3


def test_a_run_that_fails_is_a_failed_trial(runs, tmp_path, capsys):
    words = (*WORDS, "--learning-rate", "1e-7")
    found = run_trials(search_in(tmp_path / "study", 1, 3, words), StopSignal())
    assert found[0].state == TrialState.FAIL and "error: too far" in capsys.readouterr().out
    assert found[1].state == TrialState.COMPLETE
    assert found[0].params["learning_rate"] == 1e-7


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (1, RunError, r"first 3 trials failed; .*trial-002.txt"),
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

    monkeypatch.setattr(side_runs, "start_process", fails)
    with pytest.raises(kind, match=message):
        run_trials(search_in(tmp_path / "study", 1, 5), StopSignal())


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text + "{}\n",
        lambda text: text[:300] + "\n" + text[300:],
        lambda text: text.replace("learning_rate", "learning_late"),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path, damage):
    search = search_in(tmp_path)
    begin_trial(search, open_study(search))
    path = tmp_path / "trials.log"
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=r"trials\.log: no trials of this study"):
        open_study(search)


def test_a_study_whose_file_was_edited_is_refused(tmp_path):
    search = search_in(tmp_path)
    begin_trial(search, open_study(search))
    study = replace(search.study, trials=99, finalists=0)
    open_study(replace(search, study=study))
    for edited in (replace(study, words=(*WORDS[:-1], "5")), replace(study, pruner="none")):
        with pytest.raises(UsageError, match=r"study\.json has .* and the study began with"):
            open_study(replace(search, study=edited))


def test_half_a_line_is_dropped_and_nothing_is_unpickled(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    search = search_in(tmp_path)
    begin_trial(search, open_study(search))
    path = tmp_path / "trials.log"
    path.write_bytes(path.read_bytes() + b'{"half')
    journal = open_study(search)
    (first,) = journal.trials
    assert search.settings_of(first) == {"learning_rate": 0.001, "gamma": "0.99"}
    begin_trial(search, journal)
    assert len(open_study(search).trials) == 2


# By gamma and seed, the mean return of the last policy. Seed 4 is that of the trials.
RETURNS = {("0.95", 5): 10.0, ("0.95", 6): 70.0, ("0.98", 5): 60.0, ("0.98", 6): 60.0}


@pytest.fixture
def finals(monkeypatch):
    """Runs of a final that take no training; their words, in order."""
    started: list[tuple[str, ...]] = []

    def start(words, prints):
        started.append(tuple(words))
        config, _ = parse(words)
        folder = config.output.output or config.output.resume
        if config.output.resume is not None:
            config = read_config(folder)
        folder.mkdir(exist_ok=True)
        write_config(folder, config)
        value = RETURNS[str(config.experiment.gamma), config.experiment.seed]
        steps = config.experiment.env_steps if value is not None else 8
        (folder / "metrics.csv").write_text(f"iteration,env_steps,reward_mean\n0,{steps},1.5\n")
        if value is not None:
            text = f"iteration,env_steps,reward_mean\n0,{steps},{value}\n"
            (folder / "evaluations.csv").write_text(text)
        prints.write_text("error: a crash\n")
        code = int(value is None)
        return subprocess.Popen([sys.executable, "-IS", "-c", f"raise SystemExit({code})"])

    monkeypatch.setattr(side_runs, "start_process", start)
    monkeypatch.setattr(side_runs, "_POLL_SECONDS", 0.01)
    return started


def final_search(folder: Path, words=WORDS, **options):
    options = {"search": ("gamma",), "finalists": 2, "final_seeds": 2} | options
    return search_in(folder, 2, 5, words, **options)


def finished_trials(search):
    """Of gamma 0.95 with the best score, 0.98, and one that was pruned, which is in no final."""
    journal = open_study(search)
    for gamma, value in (("0.99", 20.0), ("0.95", 90.0), ("0.999", None), ("0.98", 80.0)):
        journal.enqueue_trial({"gamma": gamma}, skip_if_exists=True)
        trial = begin_trial(search, journal)
        trial.report(value or 95.0, 1)
        journal.tell(trial, value, TrialState.COMPLETE if value else TrialState.PRUNED)
    return best_of(journal.trials)


def test_the_mean_of_seeds_that_no_trial_had_decides(finals, tmp_path):
    search = final_search(tmp_path)
    found = run_finals(search, finished_trials(search), StopSignal())
    assert [(each.trial.number, each.scores) for each in found] == [
        (3, [60.0, 60.0]),
        (1, [10.0, 70.0]),
    ]
    configs = [parse(words)[0] for words in finals]
    assert [(each.experiment.gamma, each.experiment.seed) for each in configs] == [
        *((0.95, 5), (0.95, 6), (0.98, 5), (0.98, 6))
    ]
    for each in configs:
        assert each.experiment.env_steps == 3200 and each.experiment.evaluate_episodes == 100
        # Beyond any run: the last policy alone is evaluated.
        assert each.experiment.evaluate_every == 1_000_000


@pytest.mark.parametrize(
    ("words", "options", "wanted"),
    [
        (
            ("--evaluate-every", "3", "--evaluate_episodes=7"),
            {"final_env_steps": 900},
            (900, 3, 7, None),
        ),
        (("--evaluate-every", "none", "--stop-at=400"), {}, (3200, 1_000_000, 100, None)),
    ],
)
def test_what_is_given_is_kept_but_for_the_length(finals, tmp_path, words, options, wanted):
    search = final_search(tmp_path, (*WORDS, *words), **options)
    run_finals(search, finished_trials(search), StopSignal())
    found = parse(finals[0])[0].experiment
    assert wanted == (
        *(found.env_steps, found.evaluate_every, found.evaluate_episodes, found.stop_at),
    )


def test_what_is_not_done_goes_on_and_what_is_done_is_not_run_again(finals, tmp_path, monkeypatch):
    search = final_search(tmp_path)
    best = finished_trials(search)
    with monkeypatch.context() as patched:
        patched.setitem(RETURNS, ("0.98", 6), None)
        found = run_finals(search, best, StopSignal())
    # A run that failed makes its settings the last.
    assert [(each.trial.number, each.mean) for each in found] == [(1, 40.0), (3, None)]
    finals.clear()
    found = run_finals(search, best, StopSignal())
    assert [(each.trial.number, each.mean) for each in found] == [(3, 60.0), (1, 40.0)]
    (words,) = finals
    assert words[:2] == ("--resume", str(tmp_path / "final-003-seed-6"))


def test_a_stopped_study_begins_no_run(finals, tmp_path):
    search, stop = final_search(tmp_path), StopSignal()
    best = finished_trials(search)
    stop.set()
    found = run_finals(search, best, stop)
    assert finals == [] and [each.mean for each in found] == [None, None]
