"""Checkpoints: what is in one, that a torn or hostile one is refused, that a crash tears none."""

import errno
import hashlib
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.actor.randomness import reset_seed
from flame_rl.learner.demonstrations.files import read_npz
from flame_rl.learner.learner import Learner
from flame_rl.learner.make import make_learner
from flame_rl.learner.off_policy.replay.journal import Journal
from flame_rl.report.tables import read_columns
from flame_rl.run import checkpoint
from flame_rl.run.checkpoint import (
    MAGIC,
    Checkpointer,
    CheckpointError,
    encode_checkpoint,
    find_checkpoint,
    list_checkpoints,
    read_checkpoint,
)
from flame_rl.run.folder import BEST_NAME, CHECKPOINTS_NAME, read_config
from flame_rl.run.results import RunState, Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import write_atomically
from flame_rl.system.machine import physical_bytes
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import Column, Environment
from tests.helpers import environment_id, run_here, run_ok, run_script, spec_of
from tests.hostile import Bomb, refused_without_memory
from tests.runs import assert_same_run

pytestmark = pytest.mark.faults

CONFIG = TrainConfig(env="cartpole", hidden_sizes=(3,), seed=5, output=Path("a/b"))
NAME = r"00000007\.ckpt"
SPEC = spec_of(2, 2, False)


def new_learner() -> Learner:
    return make_learner(CONFIG, SPEC)


def sealed(body: bytes) -> bytes:
    """With a checksum that is right: whoever alters a file on purpose can compute one, too."""
    return MAGIC + hashlib.sha256(body).digest() + body


STATE = RunState(Totals(7, 70, 300, 4.5), new_learner().state_dict())
GOOD = encode_checkpoint(STATE, 1.5, SPEC, CONFIG)
BODY = GOOD[len(MAGIC) + 32 :]
HEADER, ARRAYS = packing.unpack(BODY, "checkpoint")


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A file to write bytes to."""
    return tmp_path_factory.mktemp("checkpoint") / "00000007.ckpt"


def load_bytes(path: Path, data: bytes):
    path.write_bytes(data)
    return read_checkpoint(path)


def test_round_trip(path):
    learner = new_learner()
    loaded = load_bytes(path, GOOD)
    assert loaded.totals == Totals(7, 70, 300, 4.5) and loaded.score == 1.5
    assert loaded.spec == SPEC
    assert loaded.config == json.loads(CONFIG.to_json())
    assert TrainConfig.from_json(json.dumps(loaded.config)) == CONFIG
    assert loaded.versions["numpy"] == np.__version__
    assert set(loaded.versions) == {
        *("python", "torch", "numpy", "gymnasium", "mujoco", "safetensors"),
        *("BLAS kernel", "NumPy's instruction set", "torch's instruction set"),
    }
    blas = [each for each in threadpoolctl.threadpool_info() if "numpy.libs" in each["filepath"]]
    assert [each["architecture"] for each in blas] in ([], [loaded.versions["BLAS kernel"]])
    assert set(loaded.learner) == set(learner.state_dict())
    for name, array in learner.state_dict().items():
        np.testing.assert_array_equal(loaded.learner[name], array, name, strict=True)
    learner.load_state_dict(loaded.learner)
    state = RunState(loaded.totals, learner.state_dict())
    assert encode_checkpoint(state, 1.5, SPEC, CONFIG) == GOOD


def test_what_follows_from_the_seed_is_not_stored():
    assert not any("random" in name or "generator" in name for name in [*HEADER, *ARRAYS])


def test_every_byte_is_guarded(path):
    for position in range(len(GOOD)):
        data = bytearray(GOOD)
        data[position] ^= 1 << position % 8
        with pytest.raises(CheckpointError, match=NAME):
            load_bytes(path, data)


def test_every_length_but_the_right_one_is_refused(path):
    for length in range(0, len(GOOD), 3):
        with pytest.raises(CheckpointError, match=NAME):
            load_bytes(path, GOOD[:length])
    for tail in (b"\0", GOOD):
        with pytest.raises(CheckpointError, match="checksum"):
            load_bytes(path, GOOD + tail)


def with_header(**changes) -> bytes:
    return sealed(packing.pack("checkpoint", HEADER | changes, ARRAYS))


def without(name: str) -> bytes:
    header = {key: value for key, value in HEADER.items() if key != name}
    return sealed(packing.pack("checkpoint", header, ARRAYS))


def with_arrays(**changes) -> bytes:
    return sealed(packing.pack("checkpoint", HEADER, ARRAYS | changes))


# Older checkpoints have neither.
OPTIONAL = "mean_return", "networks_file"
HOSTILE = {
    **{f"no {name}": without(name) for name in sorted(HEADER.keys() - {"type", *OPTIONAL})},
    "empty": b"",
    "a pickle": pickle.dumps(Bomb()),
    "a pickle, sealed": sealed(pickle.dumps(Bomb())),
    "a message, not sealed": BODY,
    "another message": sealed(codec.encode_describe(Environment("X-v0"))),
    "magic alone": MAGIC,
    "nothing, sealed": sealed(b""),
    "another format": with_header(format=1),
    "no format": with_header(format=None),
    "iterations below 0": with_header(iterations=-1),
    "iterations of a bool": with_header(iterations=True),
    "episodes of a fraction": with_header(episodes=1.5),
    "steps of a text": with_header(env_steps="300"),
    "a score of a text": with_header(score="1.5"),
    "a length of a text": with_header(length_mean="1.5"),
    "a score of NaN": with_header(score=float("nan")),
    "a config of a list": with_header(config=[]),
    "no environment": with_header(spec=None),
    "an environment of nothing": with_header(spec={}),
    "an environment of no width": with_header(
        spec=HEADER["spec"] | {"observation_space": {"type": "tuple", "spaces": []}}
    ),
    "an environment of no actions": with_header(
        spec=HEADER["spec"] | {"action_space": {"type": "dict", "spaces": []}}
    ),
    "versions of a text": with_header(versions="1"),
    "a weight of NaN": with_arrays(**{"policy.x": np.array([1.0, np.nan], np.float32)}),
    "a weight of infinity": with_arrays(**{"policy.x": np.array([-np.inf])}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_without_memory(name, path):
    with refused_without_memory(CheckpointError, NAME):
        load_bytes(path, HOSTILE[name])


def test_something_huge_that_is_no_checkpoint_is_not_read(path):
    with path.open("wb") as file:
        file.truncate(300_000_000)
    with refused_without_memory(CheckpointError, "not a checkpoint"):
        read_checkpoint(path)
    path.unlink()


def test_a_table_that_unpacks_to_gigabytes_is_refused(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_TABLE_BYTES", 1 << 20)
    data = with_arrays(**{"table metrics.csv": np.frombuffer(zlib.compress(bytes(1 << 26)), "u1")})
    with refused_without_memory(CheckpointError, "a table: damaged, or too large"):
        load_bytes(path, data)


@pytest.mark.parametrize("name", ["checkpoint", "config", "table", "episodes", "demonstrations"])
def test_a_file_of_more_bytes_than_there_is_memory_is_refused_unread(name, tmp_path):
    """Nearly all of them are holes: on the disk it is small."""
    columns = [Column("observations", "float32", (1,), True)]
    readers = {
        "checkpoint": (read_checkpoint, "a", GOOD),
        "config": (lambda _: read_config(tmp_path), "config.json", CONFIG.to_json().encode()),
        "table": (read_columns, "metrics.csv", b"iteration\n0\n"),
        "episodes": (lambda _: [*Journal(tmp_path, columns).read()], f"{0:012d}.replay", b""),
        "demonstrations": (read_npz, "a.npz", b"PK"),
    }
    read, file, data = readers[name]
    (tmp_path / file).write_bytes(data)
    os.truncate(tmp_path / file, 2 * physical_bytes())
    words = r"a file of [\d,.]+ GB, and this machine or container has"
    with refused_without_memory(Exception, words):
        read(tmp_path / file)


def test_what_is_no_file(tmp_path):
    (tmp_path / "00000001.ckpt").mkdir()
    for name in ("00000001.ckpt", "missing.ckpt"):
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(tmp_path / name)


# Fuzzing: whatever the bytes, a checkpoint comes out whole or CheckpointError, nothing else.


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


HEADERS = st.dictionaries(st.sampled_from(sorted(HEADER)), JSON, max_size=3)


def altered(changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(BODY)
    for position, change in changes:
        data[position] ^= change
    return sealed(bytes(data))


PLACES = st.tuples(st.integers(0, len(BODY) - 1), st.integers(1, 255))
STARTS = st.sampled_from([b"", MAGIC, sealed(b"")]) | st.integers(0, len(GOOD)).map(
    lambda cut: GOOD[:cut]
)
FUZZ = {
    "bytes": st.tuples(STARTS, st.binary(max_size=300)).map(b"".join),
    "sealed bytes": st.builds(
        lambda cut, tail: sealed(BODY[:cut] + tail),
        st.integers(0, len(BODY)),
        st.binary(max_size=300),
    ),
    "altered": st.lists(PLACES, min_size=1, max_size=4).map(altered),
    "headers": HEADERS.map(lambda header: with_header(**header)),
}


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FUZZ)
def test_fuzz(kind, count, path):
    @settings(max_examples=count)
    @given(FUZZ[kind])
    def check(data):
        try:
            loaded = load_bytes(path, data)
        except CheckpointError as error:
            assert path.name in str(error)
        else:
            assert all(np.isfinite(array).all() for array in loaded.learner.values())

    check()


# Which checkpoint is used, which ones are kept.


def stub_trainer(first: int = 0, **options) -> SimpleNamespace:
    """What a Checkpointer reads of a Trainer."""
    config = TrainConfig(hidden_sizes=(3,), **options)
    totals = Totals(first)
    return SimpleNamespace(
        config=config, spec=SPEC, learner=new_learner(), totals=totals, before=None, replay=None
    )


def iterate(trainer: SimpleNamespace, score: float, evaluated: float | None = None):
    """Another iteration is done; returns what a Checkpointer reads of its result."""
    trainer.before = RunState(trainer.totals, trainer.learner.state_dict())
    iteration = trainer.totals.iterations
    trainer.totals = Totals(iteration + 1, 10, 50, 5.0)
    evaluation = None if evaluated is None else SimpleNamespace(reward_mean=evaluated)
    return SimpleNamespace(iteration=iteration, reward_mean=score, evaluation=evaluation)


def save_all(folder: Path, scores: list[float], first: int = 0, **options) -> None:
    trainer = stub_trainer(first, checkpoint_every=1, **options)
    checkpointer = Checkpointer(folder, trainer, {})
    for score in scores:
        checkpointer.report(iterate(trainer, score))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / CHECKPOINTS_NAME).iterdir())


def test_the_latest_and_the_best_are_kept(tmp_path):
    save_all(tmp_path, [1.0, 5.0, 2.0, 4.0, 3.0, 3.0], keep_checkpoints=2)
    assert names(tmp_path) == ["00000005.ckpt", "00000006.ckpt", "best.ckpt"]
    best = read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME)
    # The policy that collected in the second iteration has had one update.
    assert (best.totals.iterations, best.score) == (1, 5.0)
    # Taken up again: the best is still the best until something is better.
    save_all(tmp_path, [4.9], first=6, keep_checkpoints=2)
    assert read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME).score == 5.0
    save_all(tmp_path, [5.1], first=7, keep_checkpoints=2)
    assert read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME).totals.iterations == 7
    assert names(tmp_path) == ["00000007.ckpt", "00000008.ckpt", "best.ckpt"]


def test_with_evaluations_the_best_is_the_best_of_them(tmp_path):
    """Saved at once, though no other checkpoint is due."""
    for first in (0, 4):  # the second time taken up again
        trainer = stub_trainer(first, checkpoint_every=100, evaluate_every=2)
        checkpointer = Checkpointer(tmp_path, trainer, {})
        for iteration, evaluated in ((0, None), (1, -3.0), (2, None), (3, -5.0)):
            checkpointer.report(iterate(trainer, 100.0, evaluated))
            if iteration:
                best = read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME)
                assert (best.totals.iterations, best.score) == (2, -3.0)
        checkpointer.save()
    assert names(tmp_path) == ["00000004.ckpt", "00000008.ckpt", "best.ckpt"]


def test_a_damaged_best_is_replaced(tmp_path):
    save_all(tmp_path, [9.0])
    (tmp_path / CHECKPOINTS_NAME / BEST_NAME).write_bytes(b"torn")
    save_all(tmp_path, [1.0], first=1)
    assert read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME).score == 1.0


def test_saved_every_so_many_iterations_and_at_the_end(tmp_path):
    trainer = stub_trainer(checkpoint_every=4)
    checkpointer = Checkpointer(tmp_path, trainer, {})
    checkpointer.save()  # there is nothing yet
    assert not (tmp_path / CHECKPOINTS_NAME).exists()
    for _ in range(6):
        checkpointer.report(iterate(trainer, 0.0))
    assert names(tmp_path) == ["00000004.ckpt", "best.ckpt"]
    checkpointer.save()
    assert names(tmp_path) == ["00000004.ckpt", "00000006.ckpt", "best.ckpt"]


def test_the_newest_sound_one_is_used_and_the_damaged_are_named(tmp_path):
    with pytest.raises(UsageError, match="holds no sound checkpoint"):
        find_checkpoint(tmp_path)
    save_all(tmp_path, [0.0, 1.0, 2.0, 3.0], keep_checkpoints=4)
    newest, before, *_ = list_checkpoints(tmp_path / CHECKPOINTS_NAME)
    assert find_checkpoint(tmp_path)[0].totals.iterations == 4
    newest.write_bytes(newest.read_bytes()[:-1])
    before.write_bytes(HOSTILE["a weight of NaN"])
    (tmp_path / CHECKPOINTS_NAME / "00000009.ckpt.part").write_bytes(GOOD[:100])
    found, damaged = find_checkpoint(tmp_path)
    assert found.totals.iterations == 2
    assert len(damaged) == 2
    assert "00000004.ckpt" in damaged[0] and "checksum" in damaged[0]
    assert "00000003.ckpt" in damaged[1] and "not finite" in damaged[1]


def test_those_after_the_one_from_which_a_run_went_on_are_left_behind(tmp_path):
    """They would be taken up again, and evaluated, in place of what the run has become."""
    save_all(tmp_path, [0.0] * 4, keep_checkpoints=9)
    newest, *_ = list_checkpoints(tmp_path / CHECKPOINTS_NAME)
    newest.write_bytes(newest.read_bytes()[:-1])
    save_all(tmp_path, [0.0], first=1, keep_checkpoints=9)
    assert names(tmp_path) == ["00000001.ckpt", "00000002.ckpt", "best.ckpt"]
    assert find_checkpoint(tmp_path)[0].totals.iterations == 2


def test_a_best_from_after_the_iteration_at_which_a_run_goes_on_is_found_anew(tmp_path):
    for first, scores, seen in (
        (0, [1.0, 0.5, 0.0, 7.0, 3.0], [1, 1, 1, 4, 4]),
        # The same again, as after a crash; then another way.
        (2, [0.0, 7.0, 3.0], [3, 4, 4]),
        (2, [0.0, 0.2, 0.1], [3, 4, 4]),
    ):
        trainer = stub_trainer(first, checkpoint_every=100, evaluate_every=1)
        checkpointer = Checkpointer(tmp_path, trainer, {})
        for score, expected in zip(scores, seen, strict=True):
            checkpointer.report(iterate(trainer, 0.0, score))
            best = read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME)
            assert best.totals.iterations == expected
        assert best.score == max(scores)


TORN = """
import os, signal, sys
import flame_rl.system.files

fsync = os.fsync

def torn(descriptor):
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if path.endswith("00000008.ckpt.part"):
        os.truncate(path, 700)
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = torn
import main
sys.exit(main.main())
"""

RUN = (
    *("--env", environment_id("Poisoned"), "--episodes-per-iter", "8", "--workers", "0"),
    *("--iterations", "12", "--hidden-sizes", "5", "--checkpoint-every", "4", "--output", "run"),
)


@pytest.mark.skipif(sys.platform != "linux", reason="the fault is injected by way of /proc")
def test_killed_in_the_middle_of_a_checkpoint(tmp_path):
    run_ok(*RUN, "--output", "clean", cwd=tmp_path)
    done = run_script(TORN, *RUN, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "00000008.ckpt.part" in names(tmp_path / "run")
    assert find_checkpoint(tmp_path / "run")[0].totals.iterations == 4
    done = run_ok("--resume", "run", cwd=tmp_path)
    assert done.stderr == ""
    assert "Going on after iteration 3" in done.stdout
    assert_same_run(tmp_path / "run", tmp_path / "clean")
    assert not list(tmp_path.rglob("*.part"))


# A full disk.


@pytest.fixture
def small_disk(tmp_path):
    """`resize("40k")` gives tmp_path/disk, a tmpfs, that many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
        refusal = done.stderr if done.returncode else ""
    except FileNotFoundError as error:
        refusal = str(error)
    if refusal:
        pytest.skip(f"a tmpfs cannot be mounted here: {refusal}")

    def resize(size: str) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
        return folder

    yield resize
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_ends_the_run_at_a_checkpoint_and_room_lets_it_go_on(small_disk, tmp_path):
    arguments = (*RUN, "--checkpoint-every", "3", "--iterations", "30")
    run_ok(*arguments, "--output", "clean", cwd=tmp_path)
    disk = small_disk("40k")
    done = run_here(*arguments, "--keep-checkpoints", "20", cwd=disk)
    assert done.returncode == 1
    for words in ("error: the checkpoint ", "--resume"):
        assert done.stderr.count(words) == 1
    # Of the weights as well, which are written at the end.
    assert "No space left" in done.stderr and "Traceback" not in done.stderr
    sound = list_checkpoints(disk / "run" / CHECKPOINTS_NAME)
    assert len(sound) >= 2
    for path in sound:
        read_checkpoint(path)
    assert not list(disk.rglob("*.part"))
    small_disk("4m")
    done = run_ok("--resume", "run", cwd=disk)
    assert f"Going on after iteration {int(sound[0].stem) - 1}" in done.stdout
    assert_same_run(disk / "run", tmp_path / "clean")


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    save_all(tmp_path, [1.0])
    before = (tmp_path / CHECKPOINTS_NAME / "00000001.ckpt").read_bytes()

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunError, match=r"00000002.ckpt could not be written: .*No space left"):
        save_all(tmp_path, [2.0], first=1)
    assert names(tmp_path) == ["00000001.ckpt", "best.ckpt"]
    assert (tmp_path / CHECKPOINTS_NAME / "00000001.ckpt").read_bytes() == before
    assert read_checkpoint(tmp_path / CHECKPOINTS_NAME / BEST_NAME).score == 1.0


def test_an_error_is_not_hidden_by_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
    """Both are shown, and first what happened first."""
    seed = reset_seed(0, 2, 0)

    def refuse(self) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(Checkpointer, "save", refuse)
    fault = {"FAULT_KIND": "raise", "FAULT_SEED": str(seed)}
    done = run_here(*RUN, cwd=tmp_path, environment=fault)
    assert done.returncode == 1
    first, second = (done.stderr.index(f"error: {e}") for e in ("an episode", "the disk is full"))
    assert first < done.stderr.index("the robot fell over") < second


@pytest.mark.parametrize("value", [-1, 0.5, [1, 2], []])
@pytest.mark.parametrize("name", ["updates", "policy_adam.steps", "returns.count"])
def test_a_state_whose_count_is_none_is_refused(name, value):
    learner = new_learner()
    with pytest.raises(ValueError, match="is no count"):
        learner.load_state_dict(learner.state_dict() | {name: np.array(value)})


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_synchronises_no_folders_is_written_to(code, tmp_path, monkeypatch):
    """CIFS and WSL."""
    synchronise = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
