"""Runs that learn from replayed experience: the same bytes wherever they collect, however often
they stop, and whatever fails in between."""

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.learner.off_policy.replay import journal
from flame_rl.learner.off_policy.replay.journal import Journal
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.run.checkpoint import list_checkpoints, read_checkpoint
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError
from tests.helpers import contents, environment_id, refusal, run_here, run_ok
from tests.runs import assert_same_run, flags_of, rows

pytestmark = pytest.mark.faults

ITERATIONS = 8
SMALL = {
    "seed": 7,
    "iterations": ITERATIONS,
    "steps_per_iter": 50,
    "hidden_sizes": (8,),
    "warm_up_steps": 100,
    "capacity": 160,
    "batch_size": 8,
    "updates_per_step": 0.2,
    "checkpoint_every": 2,
    "workers": 0,
    "local": True,
}
# Of 20 steps at most, of which few are that long.
POLE = {"env": "CartPole-v1", "max_episode_steps": 20}
# Cut after two of its three steps.
TARGET = {"env": environment_id("Target"), "max_episode_steps": 2}
RUNS = {
    "dqn": {"prioritized": True, "n_step": 2, "dueling": True, "distribution": "c51"} | POLE,
    "r2d2": {"memory": "lstm", "memory_size": 4, "sequence_length": 4, "burn_in": 2} | POLE,
    # So many steps that no segment can go: a resumed run deletes them some checkpoints later.
    "impala": {"sequence_length": 4, "warm_up_steps": 160, "capacity": 300} | POLE,
    "td3": {"layer_norm": True, "normalize_observations": True} | TARGET,
    "sac": TARGET,
}
ALGORITHMS = list(RUNS)


def options_of(algorithm: str, **options) -> dict[str, object]:
    return {"algorithm": algorithm} | SMALL | RUNS[algorithm] | options


def config_of(algorithm: str, **options) -> TrainConfig:
    return TrainConfig(**options_of(algorithm, **options))


def train(folder: Path, algorithm: str, **options) -> Path:
    """The folder of a run that came to its end."""
    folder.mkdir(exist_ok=True)
    run_ok(*flags_of(options_of(algorithm, **options)), "--output", "run", cwd=folder)
    return folder / "run"


def resume(run: Path, *flags: str) -> None:
    done = run_ok("--resume", run.name, *flags, cwd=run.parent)
    assert done.stderr == ""


@pytest.fixture(scope="module", autouse=True)
def short_segments() -> Iterator[None]:
    """Several segments in a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal.__init__, "__defaults__", (3_000,))
        yield


# The gradient steps at which a copy of the whole run's folder is taken, as a kill would leave it.
MOMENTS = (1, 40)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """`wholes(algorithm)` is the folder of the run that nothing interrupts; beside it is a copy of
    each of its `MOMENTS`."""
    runs: dict[str, Path] = {}

    def whole(algorithm: str) -> Path:
        if algorithm not in runs:
            folder = tmp_path_factory.mktemp(algorithm)

            def copy(at: int) -> None:
                killed = shutil.copytree(folder / "run", folder / f"killed-{at}")
                newest = max((killed / "replay").iterdir())
                with newest.open("ab") as file:  # an episode that was half written
                    file.write(newest.read_bytes()[: 50 + at])

            with pytest.MonkeyPatch.context() as patch:
                happen_before_descents(patch, {at: partial(copy, at) for at in MOMENTS})
                runs[algorithm] = train(folder, algorithm)
            assert len(list((runs[algorithm] / "replay").iterdir())) > 2
        return runs[algorithm]

    return whole


def assert_same(run: Path, whole: Path) -> None:
    """Metrics, weights, and the experience from the oldest segment of `run` on."""
    assert_same_run(run, whole)
    name = "weights.safetensors"
    assert (run / name).read_bytes() == (whole / name).read_bytes()
    left, right = (contents(folder / "replay") for folder in (run, whole))
    assert left and left.items() <= right.items() and max(left) == max(right)


def happen_before_descents(monkeypatch, events: dict[int, Callable[[], None]]) -> None:
    """Call each event in the middle of a gradient step: before one of its networks descends."""
    descend, count = TrainedNetwork.descend, 0

    def counted(*arguments, **options) -> None:
        nonlocal count
        count += 1
        events.get(count, lambda: None)()
        descend(*arguments, **options)

    monkeypatch.setattr(TrainedNetwork, "descend", counted)


# The same bytes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_a_kill_leaves_is_taken_up(algorithm, wholes, tmp_path):
    """In the middle of some update."""
    whole = wholes(algorithm)
    for at in MOMENTS:
        killed = Path(shutil.copytree(whole.with_name(f"killed-{at}"), tmp_path / f"killed-{at}"))
        assert rows(killed) <= ITERATIONS and (rows(killed) > 2 or at == 1)
        run_ok("--resume", killed.name, cwd=tmp_path)
        assert_same(killed, whole)


def test_a_trainer_that_was_saved_goes_on(wholes, tmp_path):
    whole = digests(wholes("dqn"))
    path = tmp_path / "some" / "where.ckpt"
    with Trainer(config_of("dqn")) as trainer:
        trainer.save(path)  # before there is anything to replay
        assert [trainer.train().weights_digest for _ in range(3)] == whole[:3]
    for cut in (0, 3, 5):
        with Trainer.load(path) as trainer:
            assert trainer.totals.iterations == cut
            for iteration in range(cut, min(cut + 3, ITERATIONS)):
                assert trainer.train().weights_digest == whole[iteration]
                if iteration == 2 or iteration == 4:
                    trainer.save(path)
                    kept = contents(path.with_name("where.ckpt.replay"))
        # What is learned after it changes nothing.
        assert contents(path.with_name("where.ckpt.replay")) == kept


def digests(run: Path) -> list[str]:
    lines = (run / "metrics.csv").read_text().splitlines()[1:]
    return [line.rpartition(",")[2] for line in lines]


# Failures


def all_of(store) -> dict[str, np.ndarray]:
    positions = np.arange(store.first, store.steps)
    numbers = {name: np.array(getattr(store, name)) for name in ("first", "steps", "episodes")}
    kept = {"times": store.times(positions), "left": store.left(positions)}
    return numbers | kept | store.read(store.rows(positions))


def nan_rewards(patch, trainer: Trainer, at: int) -> None:
    kind, count = type(trainer.learner.algorithm.inner), 0
    step = kind.step

    def broken(inner, samples, *arguments):
        nonlocal count
        count += 1
        scale = np.float32(np.nan if count == at else 1)
        rewards = {name: samples[name] * scale for name in samples if "reward" in name}
        return step(inner, samples | rewards, *arguments)

    patch.setattr(kind, "step", broken)


def exception(patch, trainer: Trainer, at: int) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    happen_before_descents(patch, {at: fail})


def full_disk(patch, trainer: Trainer, at: int) -> None:
    def refuse(path: Path, start: int, chunks: list) -> None:
        with path.open("ab") as file:
            file.write(b"torn")
        raise OSError(28, "No space left on device")

    patch.setattr(journal, "_write_from", refuse)


def sync_fails(patch, trainer: Trainer, at: int) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    patch.setattr(os, "fsync", refuse)


FAILURES = {
    "NaN": (nan_rewards, RunError, "the update was refused"),
    "exception": (exception, KeyboardInterrupt, None),
    "full disk": (full_disk, RunError, r"No space left on device.*--resume"),
    "no sync": (sync_fails, RunError, r"replay: .*Input/output error"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_update_that_fails_leaves_nothing_behind(algorithm, wholes, tmp_path, monkeypatch):
    whole = digests(wholes(algorithm))
    with Trainer(config_of(algorithm)) as trainer:
        trainer.replay.folder = tmp_path / "replay"
        for iteration in range(ITERATIONS):
            replay = trainer.learner.algorithm.replay
            before, kept = copy.deepcopy(trainer.learner.state_dict()), all_of(replay.store)
            # The first has no experience before it, the third no gradient step.
            for failure in FAILURES if iteration in (0, 2, 4, 7) else ():
                break_it, kind, words = FAILURES[failure]
                if iteration <= 2 and failure not in ("full disk", "no sync"):
                    continue
                files = contents(tmp_path / "replay")
                with monkeypatch.context() as patch:
                    break_it(patch, trainer, at=5)
                    with pytest.raises(kind, match=words):
                        trainer.train()
                assert trainer.totals.iterations == iteration
                after = trainer.learner.state_dict()
                assert after.keys() == before.keys()
                assert all(np.array_equal(before[name], after[name]) for name in before)
                replay.recall()
                for name, array in all_of(replay.store).items():
                    np.testing.assert_array_equal(array, kept[name], err_msg=name)
                assert contents(tmp_path / "replay") == files
            assert trainer.train().weights_digest == whole[iteration]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_run_that_failed_is_resumed(failure, wholes, tmp_path, monkeypatch):
    """The checkpoint that is written at its end has its experience, though only one is kept."""
    algorithm = "td3" if failure == "NaN" else "dqn"
    train_once, run = Trainer.train, tmp_path / "run"

    def broken(trainer: Trainer):
        with monkeypatch.context() as patch:
            if trainer.totals.iterations == 5:
                FAILURES[failure][0](patch, trainer, 9)
            return train_once(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", broken)
        flags = [*flags_of(options_of(algorithm, keep_checkpoints=1)), "--output", "run"]
        done = run_here(*flags, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    if failure == "exception":
        assert done.returncode == 130
    else:
        assert done.returncode == 1 and done.stderr.startswith("error: ")
        assert failure != "full disk" or str(run / "replay") in done.stderr
    (newest,) = list_checkpoints(run / "checkpoints")
    assert newest.name == "00000005.ckpt" and rows(run) == 1 + 5
    resume(run)
    assert_same(run, wholes(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "rate"), [("sac", 1e3), *((name, 1e37) for name in ("dqn", "r2d2", "sac"))]
)
def test_a_network_that_diverges_is_refused(algorithm, rate, tmp_path):
    """TD errors that are not finite are no priorities, and a temperature may be infinite."""
    options = {"learning_rate": rate}
    if algorithm == "sac":
        options["value_learning_rate"] = rate
    done = run_here(*flags_of(options_of(algorithm, **options)), "--output", "run", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    if done.returncode != 0 or rate == 1e37:
        assert done.returncode == 1
        assert done.stderr.startswith("error: the update was refused")
        assert "try a tenth" in done.stderr


# Files of the run


def test_evaluating_touches_no_experience_and_reads_none(wholes, tmp_path, monkeypatch):
    """While the run goes on, and even where its journal is gone."""
    run = Path(shutil.copytree(wholes("dqn"), tmp_path / "run"))
    newest = max((run / "replay").iterdir())
    newest.write_bytes(newest.read_bytes() + b"what is being written")
    before, opened = contents(run / "replay"), []
    monkeypatch.setattr(Journal, "__init__", lambda *arguments: opened.append(arguments))
    for path in (run, run / "checkpoints" / "best.ckpt"):
        with Trainer.load(path) as trainer:
            results = [trainer.evaluate(episodes=3)]
            trainer.compute_action(np.zeros(4, np.float32))
            shutil.move(run / "replay", tmp_path / "away")
            results.append(trainer.evaluate(episodes=3))
            shutil.move(tmp_path / "away", run / "replay")
        assert results[0] == results[1]
    run_ok("evaluate", "run", "--episodes", "2", cwd=tmp_path)
    assert opened == [] and contents(run / "replay") == before


def damage(folder: Path, how: str) -> None:
    paths = sorted(folder.iterdir())
    if how == "missing":
        shutil.rmtree(folder)
    elif how == "a segment is missing":
        paths[-2].unlink()
    else:
        data = bytearray(paths[-2].read_bytes())
        data[len(data) // 2] ^= 1
        paths[-2].write_bytes(data)


def test_damaged_experience_is_refused(wholes, tmp_path):
    run = Path(shutil.copytree(wholes("dqn"), tmp_path / "run"))
    (run / "checkpoints" / "00000008.ckpt").unlink()
    saved, folder = tmp_path / "saved.ckpt", tmp_path / "saved.ckpt.replay"
    with Trainer.load(run) as trainer:
        trainer.save(saved)
    sound = shutil.copytree(folder, tmp_path / "sound")
    for how in ("flipped", "a segment is missing", "missing"):
        for place, good in ((folder, sound), (run / "replay", wholes("dqn") / "replay")):
            shutil.rmtree(place)
            damage(Path(shutil.copytree(good, place)), how)
        with Trainer.load(saved) as trainer, pytest.raises(RunError) as caught:
            trainer.train()
        assert str(caught.value).startswith("replay: ") and str(folder) in str(caught.value)
        before = contents(run / "replay")
        done = run_here("--resume", "run", cwd=tmp_path)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert f"error: replay: {run / 'replay'}" in done.stderr
        assert contents(run / "replay") == before
    # Once it is put back, nothing was lost; from within its folder.
    shutil.copytree(wholes("dqn") / "replay", run / "replay", dirs_exist_ok=True)
    done = run_ok("--resume", ".", cwd=run)
    assert done.stderr == ""
    assert_same(run, wholes("dqn"))


def test_the_best_checkpoint_is_a_policy_even_without_its_experience(tmp_path):
    """To train on from it is refused; it says so, and the newest one is as good as before."""
    options = {"keep_checkpoints": 1, "evaluate_every": 1, "evaluate_episodes": 1}
    run = train(tmp_path, "dqn", seed=9, **options)
    assert read_checkpoint(run / "checkpoints" / "best.ckpt").totals.iterations < ITERATIONS - 2
    before = contents(run / "replay")
    with Trainer.load(run, best=True) as trainer:
        trainer.evaluate(episodes=2)
        with pytest.raises(RunError, match=r"needs the episodes .*resume from another checkpoint"):
            trainer.train()
        trainer.evaluate(episodes=2)
    assert contents(run / "replay") == before
    with Trainer.load(run, iterations=ITERATIONS + 1) as trainer:
        assert len(list(trainer)) == 1


def test_a_saved_file_outlasts_a_disk_that_is_full(wholes, tmp_path, monkeypatch):
    """The one before it is whole, with its experience."""
    path, whole = tmp_path / "saved.ckpt", digests(wholes("sac"))

    def refuse(*arguments, **options) -> None:
        raise OSError(28, "No space left on device")

    with Trainer(config_of("sac")) as trainer:
        for _ in range(4):
            trainer.train()
        trainer.save(path)
        trainer.train()
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copytree", refuse)
            with pytest.raises(RunError, match=r"saved.ckpt.*No space left"):
                trainer.save(path)
    with Trainer.load(path) as trainer:
        assert [result.weights_digest for result in trainer] == whole[4:]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["saved.ckpt", "saved.ckpt.replay"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-episode-steps", "6", "--capacity", "5"), "5 steps, and an episode of 6"),
        (("--max-episode-steps", "none", "--capacity", "3"), "3 steps, and an episode of 4"),
    ],
)
def test_an_episode_that_is_longer_than_the_capacity(flags, words, tmp_path):
    """Known from the time limit, or once there is one."""
    env = ("--env", environment_id("ObservationAction"))
    said = refusal(*flags_of(options_of("dqn")), *env, *flags, "--output", "run", cwd=tmp_path)
    assert f"error: --capacity: {words}" in said
    assert (tmp_path / "run").exists() == ("none" in flags)
