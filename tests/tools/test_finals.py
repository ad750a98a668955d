"""The final of a study: who is in it, what it runs, and what goes on after an end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("optuna", reason="uv run --group tune pytest")

from flame_rl.commands.tune import _search
from flame_rl.run.folder import read_config, write_config
from flame_rl.settings.parse import parse
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import StopSignal
from flame_rl.tools import seeds
from flame_rl.tools.study.finals import run_finals
from flame_rl.tools.study.pruning import RUNGS
from flame_rl.tools.study.trials import Trial
from flame_rl.tools.study.tuning import Study

WORDS = ("--env", "cartpole", "--algorithm", "ppo", "--env-steps", "800", "--seed", "4")
# By gamma and seed, the mean return of the last policy. Seed 4 is that of the trials.
RETURNS = {
    ("0.95", 5): 10.0,
    ("0.95", 6): 70.0,
    ("0.98", 5): 60.0,
    ("0.98", 6): 60.0,
    ("0.999", 5): 500.0,
    ("0.999", 6): 500.0,
}
# 0.999 is the best of all, but its trial was pruned; 0.99 is too poor to be a finalist.
TRIALS = [
    Trial(0, {"gamma": "0.99"}, (20.0,) * RUNGS),
    Trial(1, {"gamma": "0.95"}, (90.0,) * RUNGS),
    Trial(2, {"gamma": "0.999"}, (95.0,)),
    Trial(3, {"gamma": "0.98"}, (80.0,) * RUNGS),
    Trial(4, {"gamma": "0.98"}, (), failed=True),
]


@pytest.fixture
def runs(monkeypatch):
    """Runs that take no training; their words, in order."""
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

    monkeypatch.setattr(seeds, "start_run", start)
    monkeypatch.setattr(seeds, "_POLL_SECONDS", 0.01)
    return started


@pytest.fixture
def search(tmp_path):
    study = Study(WORDS, ("gamma",), 5, 2, "median", finalists=2, final_seeds=2)
    return replace(_search(study, parse(WORDS)[0]), folder=tmp_path)


def test_the_mean_of_seeds_that_no_trial_had_decides(runs, search):
    finals = run_finals(search, TRIALS, StopSignal())
    assert [(each.trial.number, each.scores) for each in finals] == [
        (3, (60.0, 60.0)),
        (1, (10.0, 70.0)),
    ]
    configs = [parse(words)[0] for words in runs]
    assert [(each.experiment.gamma, each.experiment.seed) for each in configs] == [
        *((0.95, 5), (0.95, 6), (0.98, 5), (0.98, 6))
    ]
    for each in configs:
        assert each.experiment.env_steps == 3200 and each.experiment.evaluate_episodes == 100
        # Beyond any run: the last policy alone is evaluated.
        assert each.experiment.evaluate_every == 1_000_000


def test_what_is_given_is_kept(runs, search):
    words = (*WORDS, "--evaluate-every", "3", "--evaluate_episodes=7")
    study = replace(search.study, words=words, final_env_steps=900)
    search = replace(_search(study, parse(words)[0]), folder=search.folder)
    run_finals(search, TRIALS, StopSignal())
    experiment = parse(runs[0])[0].experiment
    assert (experiment.env_steps, experiment.evaluate_every) == (900, 3)
    assert experiment.evaluate_episodes == 7


def test_runs_of_the_final_are_as_long_and_evaluated_whatever_trials_are(runs, search):
    words = (*WORDS, "--evaluate-every", "none", "--stop-at=400")
    search = replace(
        _search(replace(search.study, words=words), parse(words)[0]), folder=search.folder
    )
    run_finals(search, TRIALS, StopSignal())
    config = parse(runs[0])[0]
    assert config.experiment.stop_at is None
    assert config.experiment.evaluate_every == 1_000_000


def test_what_is_not_done_goes_on_and_what_is_done_is_not_run_again(runs, search, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setitem(RETURNS, ("0.98", 6), None)
        finals = run_finals(search, TRIALS, StopSignal())
    # A run that failed makes its settings the last.
    assert [(each.trial.number, each.mean) for each in finals] == [(1, 40.0), (3, None)]
    runs.clear()
    finals = run_finals(search, TRIALS, StopSignal())
    assert [(each.trial.number, each.mean) for each in finals] == [(3, 60.0), (1, 40.0)]
    (words,) = runs
    assert words[:2] == ("--resume", str(search.folder / "final-003-seed-6"))


def test_a_stopped_study_begins_no_run(runs, search):
    stop = StopSignal()
    stop.set()
    finals = run_finals(search, TRIALS, stop)
    assert runs == [] and [each.mean for each in finals] == [None, None]


def test_a_run_with_other_settings_is_refused(runs, search):
    run_finals(search, TRIALS, StopSignal())
    folder = search.folder / "final-003-seed-5"
    write_config(folder, read_config(folder).changed(gamma=0.5))
    with pytest.raises(UsageError, match=r"final-003-seed-5 has other settings .*--gamma 0.5"):
        run_finals(search, TRIALS, StopSignal())
