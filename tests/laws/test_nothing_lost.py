"""What was learned is saved whatever happens to files, streams and signals around it."""

import copy
import inspect
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.learner.compiled import network as compiled
from flame_rl.learner.learner import Learner
from flame_rl.report import Reporters
from flame_rl.report.tables import TableReporter, metrics_row
from flame_rl.run import checkpoint
from flame_rl.run.iteration import collect_iteration, learn_iteration
from flame_rl.system.signals import end_if_stopped
from tests.forks import Forked
from tests.helpers import (
    ROOT,
    clean_environment,
    contents,
    finished_run,
    run_here,
    run_ok,
    start_main,
)
from tests.runs import RUN, assert_same_run, wait_until

pytestmark = pytest.mark.faults
EIGHT = (*RUN, "--iterations", "8", "--workers", "0", "--checkpoint-every", "2")


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> Path:
    """The folder of a finished run of eight iterations."""
    return finished_run(tmp_path_factory, *EIGHT, "--keep-checkpoints", "9")


def test_a_resume_that_looks_further_back_deletes_nothing(eight, tmp_path):
    """Where rows are missing, and where the newest checkpoint is damaged."""
    run = Path(shutil.copytree(eight, tmp_path / "run"))
    (run / "checkpoints" / "best.ckpt").unlink()
    newest = run / "checkpoints" / "00000008.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    rows = (run / "metrics.csv").read_bytes().splitlines(keepends=True)
    (run / "metrics.csv").write_bytes(b"".join(rows[:5]))
    (run / "timing.csv").unlink()
    before = contents(run / "checkpoints")
    run_ok("--resume", "run", "--keep-checkpoints", "9", cwd=tmp_path)
    assert_same_run(run, eight)
    after = contents(run / "checkpoints")
    assert all(after[name] == data for name, data in before.items() if name != newest.name)
    assert after[newest.name] != before[newest.name]  # written anew
    assert len((run / "timing.csv").read_text().splitlines()) == 9


class Full:
    """A disk that takes `room` more bytes."""

    def __init__(self, monkeypatch, room: int) -> None:
        self.room, self._write = room, os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if descriptor < 3:
            return self._write(descriptor, data)
        count = min(self.room, len(data))
        if count == 0:
            raise OSError(28, "No space left on device")
        self.room -= count
        return self._write(descriptor, bytes(data[:count]))


def test_rows_are_written_when_there_is_room_again(tmp_path, monkeypatch, capsys):
    config = TrainConfig(local=True, workers=0, episodes_per_iter=2, iterations=6)
    texts = []
    for room in (None, 500):
        folder = tmp_path / str(room)
        folder.mkdir()
        with Trainer(config) as trainer:
            disk = Full(monkeypatch, room) if room is not None else None
            row_of = partial(metrics_row, trainer.learner.algorithm.metrics)
            reporters = Reporters([TableReporter(folder / "metrics.csv", {}, row_of)])
            for result in trainer:
                reporters.report(result)
                if disk is not None and result.iteration == 2:
                    torn = (folder / "metrics.csv").read_bytes()
                    assert len(torn) == 500
                    disk.room = 1 << 20
            reporters.close()
        monkeypatch.undo()
        texts.append((folder / "metrics.csv").read_bytes())
    assert texts[0] == texts[1]
    assert capsys.readouterr().err.count("metrics.csv") == 1  # said once


# Streams


@pytest.mark.parametrize(
    ("stderr", "stdout"),
    [("full", "closed pipe"), pytest.param("closed", "full", marks=pytest.mark.slow)],
)
def test_dead_streams_do_not_end_a_run_nor_its_saving(stdout, stderr, tmp_path):
    ends = {"full": ">/dev/full", "closed": ">&-", "closed pipe": "| true; exit ${PIPESTATUS[0]}"}
    errors = "2>/dev/full" if stderr == "full" else "2>&-"
    command = f"{sys.executable} {ROOT / 'main.py'} {' '.join(EIGHT)} --output run"
    script = f"{command} {errors} {ends[stdout]}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean_environment(tmp_path))
    run = tmp_path / "run"
    assert done.returncode == 0
    assert (run / "checkpoints" / "00000008.ckpt").exists()
    assert (run / "weights.safetensors").exists()


def test_a_terminal_that_is_closed_leaves_everything_saved(tmp_path):
    reader, writer = os.pipe()
    arguments = (*RUN, "--iterations", "5000", "--workers", "0", "--checkpoint-every", "5000")
    arguments = (*arguments, "--output", "run", "--verbose")
    process = start_main(*arguments, cwd=tmp_path, stdout=writer, stderr=writer)
    os.close(writer)
    metrics = tmp_path / "run" / "metrics.csv"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 2000)
    os.close(reader)
    process.send_signal(signal.SIGHUP)
    assert process.wait(600) == 129
    saved = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    rows = metrics.read_text().splitlines()
    assert len(saved) == 1 and int(saved[0].stem) == len(rows) - 1 > 5


NOHUP = """
import pathlib, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
pathlib.Path("begun").touch()
import main
sys.exit(main.main())
"""


def test_a_signal_that_is_ignored_at_the_start_stays_ignored(tmp_path):
    """As nohup has it."""
    script, begun = tmp_path / "nohup.py", tmp_path / "begun"
    script.write_text(NOHUP)
    flags = (*RUN, "--iterations", "10", "--workers", "0", "--output", "run")
    env = clean_environment(tmp_path) | {"FAULT_SLEEP": "0.002"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = Forked(script, flags, tmp_path, env, **pipes)
    wait_until(begun.exists)
    limit = time.monotonic() + 600
    while not (tmp_path / "run" / "metrics.csv").exists() and time.monotonic() < limit:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
    process.send_signal(signal.SIGHUP)
    assert process.wait(600) == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 11


# Half an update


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_at_any_line_leaves_learner_and_totals_as_one_iteration_has_them(fails):
    """While an iteration is done, or while one is undone whose update failed."""
    traced = {inspect.unwrap(Trainer.do_iteration).__code__}
    traced |= {each.__code__ for each in (collect_iteration, learn_iteration)}
    traced |= {function.__code__ for function in (Learner.update, Learner.load_state_dict)}
    config = TrainConfig(local=True, workers=0, episodes_per_iter=2, hidden_sizes=(3,))
    config = config.changed(iterations=999, evaluate_every=2, evaluate_episodes=1)
    with Trainer(config) as trainer:
        update = trainer.learner.update

        def failing(*arguments):
            update(*arguments)
            raise RuntimeError

        if fails:
            trainer.learner.update = failing
        for at in itertools.count(1):
            before, totals, lines = copy.deepcopy(trainer.learner.state_dict()), trainer.totals, 0

            def trace(frame, event, argument, at=at):
                nonlocal lines
                lines += event == "line"
                if event == "line" and lines == at:
                    signal.raise_signal(signal.SIGINT)
                return trace if frame.f_code in traced else None

            sys.settrace(trace)
            try:
                trainer.train()
            except (KeyboardInterrupt, RuntimeError) as error:
                interrupted = isinstance(error, KeyboardInterrupt)
            else:
                interrupted = False
            finally:
                sys.settrace(None)
            assert interrupted == (lines >= at)
            if not interrupted:
                break
            after = trainer.learner.state_dict()
            same = all(np.array_equal(after[name], before[name]) for name in before)
            assert same == (trainer.totals == totals), f"line {at}"
            assert after["updates"] == trainer.totals.iterations
        assert at > 30 and (trainer.totals.iterations == 0 or not fails)


def test_a_signal_within_an_update_is_obeyed_at_the_next_minibatch(tmp_path, monkeypatch):
    """The update is undone, and the run that goes on is the run that never stopped."""
    flags = ("--env", "cartpole", "--algorithm", "ppo", "--episodes-per-iter", "8")
    flags = (*flags, "--workers", "0", "--iterations", "4")
    run_ok(*flags, "--output", "whole", cwd=tmp_path)
    count = 0

    def counted():
        nonlocal count
        count += threading.current_thread() is threading.main_thread()
        if count == 150:
            os.kill(os.getpid(), signal.SIGTERM)
        end_if_stopped()

    with monkeypatch.context() as patch:
        # Before every step.
        patch.setattr(compiled, "end_if_stopped", counted)
        patch.setattr(compiled, "_ONE_CALL", 1)
        done = run_here(*flags, "--output", "run", cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert count == 150
    (saved,) = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")
    again = run_here("--resume", "run", cwd=tmp_path)
    assert f"Going on after iteration {int(saved.stem) - 1}" in again.stdout
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# Other people's files


def test_a_users_files_among_the_checkpoints_are_left_alone(eight, tmp_path):
    run = Path(shutil.copytree(eight, tmp_path / "run"))
    folder = run / "checkpoints"
    copies = ["00000008-before-experiment.ckpt", "1-good.ckpt", "99999999999.ckpt.bak", "9.ckpt"]
    for name in copies:
        shutil.copy(folder / "00000002.ckpt", folder / name)
    flags = ("--iterations", "9", "--keep-checkpoints", "1")
    run_ok("--resume", "run", *flags, cwd=tmp_path)
    assert all((folder / name).exists() for name in copies)
    again = run_ok("--resume", "run", "--iterations", "10", cwd=tmp_path)
    assert "Going on after iteration 8" in again.stdout


@pytest.mark.parametrize(("algorithm", "moment"), [("reinforce", 1), ("dqn", 4)])
def test_a_run_folder_that_is_renamed_stays_in_one_place(algorithm, moment, tmp_path, monkeypatch):
    """Before the first checkpoint or after it; what was saved goes on under the new name."""
    flags = ("--env", "cartpole", "--algorithm", algorithm, "--episodes-per-iter", "3")
    flags = (*flags, "--workers", "0", "--checkpoint-every", "3", "--iterations", "8")
    train, run, moved = Trainer.train, tmp_path / "run", tmp_path / "moved"

    def renamed(trainer):
        if trainer.totals.iterations == moment:
            run.rename(moved)
        return train(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", renamed)
        done = run_here(*flags, "--output", "run", cwd=tmp_path)
    assert done.returncode == 1 and not run.exists()
    assert f"{run} is gone" in done.stderr and "--resume" in done.stderr
    run_ok(*flags, "--output", "run", cwd=tmp_path)
    run_ok("--resume", "moved", cwd=tmp_path)
    assert_same_run(moved, run)


# What an environment does to the process


@pytest.mark.parametrize("kind", ["exit", "interrupt"])
def test_an_environment_that_ends_the_process_is_named(kind, tmp_path):
    environment = {"FAULT_KIND": kind, "FAULT_SEED": "any"}
    done = run_here(*EIGHT, "--output", "run", cwd=tmp_path, environment=environment)
    assert done.returncode == 1
    assert "step raised" in done.stderr and "episode 0, step 2" in done.stderr
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_an_environment_that_changes_the_folder_moves_no_file(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {"FAULT_KIND": "chdir", "FAULT_SEED": "any", "FAULT_FOLDER": str(elsewhere)}
    run_ok(*EIGHT, "--output", "run", "--plot", cwd=tmp_path, environment=environment)
    assert not list(elsewhere.iterdir())
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"checkpoints", "metrics.csv", "weights.safetensors", "curves.png"}
