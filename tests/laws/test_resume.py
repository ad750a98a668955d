"""A run that was killed and taken up again is, to the byte, the run that never stopped."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.learner.learner import Learner
from flame_rl.run import checkpoint, transfer
from flame_rl.run.folder import CHECKPOINTS_NAME, check_output, differences, hold_folder
from flame_rl.settings.checks import flag
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire import packing
from tests.helpers import contents, environment_id, refusal, run_ok, spec_of, start_main, table
from tests.learners import make_learner
from tests.runs import ITERATIONS, RUN, SLOWLY, WHOLE, assert_same_run, rows, survivors

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """A run killed after its tenth row: its last checkpoint is that of eight iterations."""
    folder = tmp_path_factory.mktemp("half")
    run_ok(*RUN, "--iterations", "10", "--workers", "0", "--output", "run", cwd=folder)
    run = folder / "run"
    (run / "checkpoints" / "00000010.ckpt").unlink()
    alter_config(run, "iterations", ITERATIONS)
    return run


def alter_config(run: Path, name: str, value: object) -> None:
    """Write another value into config.json, in whichever part has it."""
    config = json.loads((run / "config.json").read_text())
    (part,) = (part for part in config.values() if name in part)
    part[name] = value
    (run / "config.json").write_text(json.dumps(config))


@pytest.fixture
def killed(half, tmp_path) -> Path:
    """A copy of `half` to go on with, as tmp_path/run."""
    return Path(shutil.copytree(half, tmp_path / "run"))


def kill_and_go_on(
    tmp_path: Path,
    moments: list[int | float],
    workers: int = 2,
    flags: tuple[str, ...] = WHOLE,
    before_kill: Callable[[], None] = lambda: None,
) -> int:
    """Start tmp_path/run with these flags, SIGKILL the learner, go on, SIGKILL again, and so on,
    after so many rows where a moment is an integer, otherwise seconds; returns how often."""
    kills = 0
    for moment in moments:
        tag = uuid.uuid4().hex
        process = start_main(
            *begin_or_resume(tmp_path, flags),
            *("--workers", str(workers)),
            cwd=tmp_path,
            environment=SLOWLY | {"FAULT_TAG": tag},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        limit = time.monotonic() + (600 if isinstance(moment, int) else moment)
        while process.poll() is None and time.monotonic() < limit:
            if isinstance(moment, int) and rows(tmp_path / "run") >= moment:
                time.sleep(np.random.default_rng().uniform(0, 0.2))
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
        before_kill()
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL), process.stderr.read()
        kills += process.returncode != 0
        process.stderr.close()
        assert survivors(tag) == [], "a worker outlived its learner"
    return kills


def begin_or_resume(folder: Path, flags: tuple[str, ...] = WHOLE) -> tuple[str, ...]:
    """The flags that bring the run in `folder`, begun or not, to its end."""
    if (folder / "run" / "config.json").exists():
        return ("--resume", "run")
    return (*flags, "--output", "run")


def test_killed_while_it_collected_ahead_and_resumed_is_the_run_that_never_stopped(tmp_path):
    """While it is written, nobody else may have it."""
    flags = (*WHOLE, "--iterations", "16", "--algorithm", "ppo", "--overlap", "True")
    run_ok(*flags, "--workers", "0", "--output", "whole", cwd=tmp_path)

    def refused() -> None:
        before = (tmp_path / "run" / "config.json").read_bytes()
        said = refusal("--resume", "run", "--iterations", "99", cwd=tmp_path)
        assert "error: another process is writing the run in run;" in said
        assert (tmp_path / "run" / "config.json").read_bytes() == before

    assert kill_and_go_on(tmp_path, [6], flags=flags, before_kill=refused) == 1
    run_ok("--resume", "run", cwd=tmp_path)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_thirty_random_moments(seed, whole, tmp_path):
    """Three a run, from the first instructions to the end; what goes on is killed again."""
    random = np.random.default_rng(seed)
    moments = [random.uniform(0.1, 2.0), *sorted(random.integers(3, 19, 2).tolist())]
    assert kill_and_go_on(tmp_path, moments, workers=int(random.integers(1, 4))) >= 2
    run_ok(*begin_or_resume(tmp_path), cwd=tmp_path)
    assert_same_run(tmp_path / "run", whole)


NO_RESULT = (
    *("--workers", "1", "--local", "--iterations", str(ITERATIONS)),
    *("--task-timeout", "50", "--worker-episodes", "40", "--worker-megabytes", "3000"),
    *("--cluster-patience", "9", "--checkpoint-every", "7", "--keep-checkpoints", "1"),
    *("--seed", "7", "--hidden-sizes", "6"),  # as in the run
)


def test_flags_that_change_no_result_are_taken(killed, whole, tmp_path):
    done = run_ok("--resume", "run", *NO_RESULT, cwd=tmp_path)
    assert done.stderr == ""
    assert "Going on after iteration 7" in done.stdout
    since = f"{(ITERATIONS - 8) * 12} since the run was resumed"
    assert f"Episodes: {ITERATIONS * 12}, {since} (" in done.stdout
    assert_same_run(killed, whole)
    assert TrainConfig.from_json((killed / "config.json").read_text()).output.checkpoint_every == 7


PPO = TrainConfig(env=environment_id("Poisoned"), algorithm="ppo").to_json()


def test_flags_that_would_make_it_another_run_are_refused(killed, tmp_path):
    before = contents(killed)
    flags = ("--seed", "8", "--env", "cartpole", "--hidden-sizes", "6", "6", "--gamma", "1")
    said = refusal("--resume", "run", *flags, cwd=tmp_path)
    assert "--env tests.environments:Poisoned-v0 in the run, cartpole now; --seed 7" in said
    assert "--hidden-sizes (6,) in the run, (6, 6) now" in said
    assert before == contents(killed)


def test_every_field_is_either_checked_or_allowed_to_change(killed, tmp_path):
    """What decides the result, but the number of iterations or env steps."""
    free = ("iterations", "env_steps", "stop_at")
    saved = TrainConfig(algorithm="ppo")
    others = {
        "max_grad_norm": 0.25,
        "hidden_sizes": (5,),
        "activation": "relu",
        "env": "ant",
        "memory": "gru",
        "reward_parts": ("reward_ctrl",),
        "outcomes": ("is_success",),
        "reward_weights": (2.0,),
        "reward": "my_env:shaped",
        "value_weight": 0.25,
        "policy_loss": "mine:clipped",
        "env_kwargs": ("size=3",),
        "wrapper": ("my_env:Wrapped",),
        "observe": ("camera",),
        "policy_observations": ("camera",),
        "from_": Path("runs/another"),
        "model": Path("nets.py"),
        "demonstrations": "some.npz",
    }
    # These are refused alone.
    auxiliary = {"shared_torso": True, "auxiliary": ("mine:Loss",), "auxiliary_weights": (2.0,)}
    begun = {"from_": Path("runs/another"), "from_digest": "0" * 64}
    shown = {"demonstrations": "some.npz", "demonstrations_digest": "0" * 64}
    together = dict.fromkeys(auxiliary, auxiliary)
    together |= {"from_digest": begun, "demonstrations_digest": shown}
    for part in ("experiment", "algorithm"):
        for name, value in vars(getattr(saved, part)).items():
            usual = {bool: not value, float: 0.5}.get(type(value), 7)
            other = others.get(name, usual)
            found = differences(saved, saved.changed(**together.get(name, {name: other})))
            assert bool(found) == (name not in free), name
            assert name in free or flag(name) in found
    more = {"workers": 1, "local": True, "simulator": "plain", "plot": True, "checkpoint_every": 3}
    assert not differences(saved, saved.changed(**more))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 8}, "not that of the run's checkpoint: --seed 7 in the run, 8 now"),
        ({"learning_rate": 0.5}, "not that of the run's checkpoint: --learning-rate 0.01"),
        ({"gamma": "much"}, "config.json"),
        (PPO.encode(), "--algorithm reinforce in the run, ppo now"),
        (b"\x80\xff\x00", "config.json"),
        (b'{"env": null}', "config.json"),
        (b"[" * 100_000, "config.json"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_config_that_is_not_that_of_the_run_is_refused(change, words, killed, tmp_path):
    if isinstance(change, bytes):
        (killed / "config.json").write_bytes(change)
    else:
        alter_config(killed, *change.popitem())
    before = contents(killed)
    for path in ("run", "run/checkpoints/00000004.ckpt"):
        assert words in refusal("--resume", path, cwd=tmp_path)
    assert before == contents(killed)


def test_other_iterations_where_learning_rates_fall_are_pointed_out(tmp_path):
    flags = ("--learning-rate-decay", "True", "--iterations", "2", "--workers", "0")
    run_ok(*RUN, *flags, "--output", "run", cwd=tmp_path)
    done = run_ok("--resume", "run", "--iterations", "3", cwd=tmp_path)
    assert "learning rates fall until the end of the run" in done.stderr


def test_a_folder_that_holds_no_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "file", "missing"):
        said = refusal("--resume", name, cwd=tmp_path)
        assert f"error: --resume: {name} holds no run" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def torn_rows(run: Path) -> None:
    for name, count in (("metrics.csv", 40), ("timing.csv", 30)):
        (run / name).write_bytes((run / name).read_bytes()[:-count])


def missing_rows(run: Path) -> None:
    """As after a power cut: a gap in the file would be silent."""
    lines = (run / "metrics.csv").read_bytes().splitlines(keepends=True)
    (run / "metrics.csv").write_bytes(b"".join(lines[:7]))


def flipped(run: Path) -> None:
    newest = checkpoint.list_checkpoints(run / "checkpoints")[0]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 4
    newest.write_bytes(data)


def all_but_the_best(run: Path) -> None:
    for path in checkpoint.list_checkpoints(run / "checkpoints"):
        path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "warnings"),
    [
        (
            lambda run: shutil.rmtree(run / "checkpoints"),
            ["no checkpoint: the run begins at the beginning"],
        ),
        (torn_rows, []),
        (missing_rows, []),
        (flipped, ["00000008.ckpt"]),
        (all_but_the_best, ["00000008.ckpt", "00000004.ckpt"]),
    ],
)
def test_what_is_damaged_or_missing_is_named_and_computed_again(
    damage, warnings, killed, whole, tmp_path
):
    timing = (killed / "timing.csv").read_bytes().splitlines()[:9]
    best = checkpoint.read_checkpoint(killed / "checkpoints" / checkpoint.BEST_NAME)
    damage(killed)
    done = run_ok("--resume", "run", cwd=tmp_path)
    for line, words in zip(done.stderr.splitlines(), warnings, strict=True):
        assert words in line
        if damage in (flipped, all_but_the_best):
            used = 3 if damage is flipped else best.totals.iterations - 1
            assert f"the checkpoint of iteration {used} is used" in line
            assert f"Going on after iteration {used}\n" in done.stdout
    assert_same_run(killed, whole)
    assert [int(row["iteration"]) for row in table(killed / "timing.csv")] == [*range(ITERATIONS)]
    if damage is missing_rows:
        assert (killed / "timing.csv").read_bytes().splitlines()[:7] == timing[:7]


@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_that_is_named_is_used(inside, killed, whole, tmp_path):
    folder, path = (killed / "checkpoints", ".") if inside else (tmp_path, "run/checkpoints")
    done = run_ok("--resume", f"{path}/00000004.ckpt", cwd=folder)
    assert done.stderr == "" and "Going on after iteration 3" in done.stdout
    assert_same_run(killed, whole)


def test_a_folder_that_another_run_is_about_to_use_is_refused(tmp_path):
    config = TrainConfig(output=tmp_path / "run")
    with hold_folder(config):
        check_output(config)  # there is nothing yet
        with pytest.raises(UsageError, match="another process"), hold_folder(config):
            pass
    with hold_folder(config):
        (tmp_path / "run" / "metrics.csv").write_text("iteration\n0\n")
    with pytest.raises(UsageError, match="holds another run"), hold_folder(config):
        pass


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("damage", "the checksum does not match"),
        ("version", "written by another version of flame_rl, in format 5"),
    ],
)
def test_where_no_checkpoint_can_be_used_nothing_is_touched(fault, words, killed, tmp_path):
    names = {path.name for path in (killed / "checkpoints").iterdir()}
    assert names == {"00000004.ckpt", "00000008.ckpt", "best.ckpt"}
    for path in (killed / "checkpoints").iterdir():
        data = path.read_bytes()[:-1]
        if fault == "version":
            header, arrays = packing.unpack(path.read_bytes()[40:], "checkpoint")
            body = packing.pack("checkpoint", header | {"format": 5}, arrays)
            data = checkpoint.MAGIC + hashlib.sha256(body).digest() + body
        path.write_bytes(data)
    before = contents(killed)
    said = refusal("--resume", "run", cwd=tmp_path)
    assert said.startswith("error: run holds no sound checkpoint")
    assert said.count(words) == 3
    assert all(name in said for name in names)
    assert before == contents(killed)


def test_other_library_versions_are_pointed_out(killed, tmp_path, monkeypatch):
    now = checkpoint.library_versions()
    monkeypatch.setattr(transfer, "library_versions", lambda: now | {"numpy": "1.0"})
    done = run_ok("--resume", "run", cwd=tmp_path)
    assert f"made with numpy {np.__version__}, this is 1.0: results may differ" in done.stderr


def test_an_edited_file_with_networks_is_pointed_out(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("from flame_rl.model import *\n")
    run_ok(*RUN, "--model", "own.py", "--iterations", "1", "--workers", "0", cwd=tmp_path)
    (run,) = map(str, (tmp_path / "runs").iterdir())
    evaluation = "evaluate", run, "--episodes", "1", "--workers", "0"
    words = "own.py has changed since that run began"
    assert words not in run_ok(*evaluation, cwd=tmp_path).stderr
    own.write_text("from flame_rl.model import *\n# another activation\n")
    del sys.modules[str(own)]  # loaded anew, as by another process
    assert words in run_ok(*evaluation, cwd=tmp_path).stderr
    started = ("--from", run, "--iterations", "1", "--workers", "0", "--output", "from")
    assert words in run_ok(*RUN, "--model", "own.py", *started, cwd=tmp_path).stderr
    assert words in run_ok("--resume", run, "--iterations", "2", cwd=tmp_path).stderr


def test_saving_does_not_look_for_the_networks_file_again(tmp_path, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text("from flame_rl.model import *\n")
    config = TrainConfig(environment_id("Poisoned"), model=own, workers=0, local=True)
    with Trainer(config) as trainer:
        made = trainer.learner.networks_file
        own.write_text("# edited\n")
        trainer.save(tmp_path / "edited.ckpt")
        own.unlink()
        (tmp_path / "model.py").write_text("raise SystemExit('a file that nobody named')\n")
        monkeypatch.chdir(tmp_path)
        trainer.save(tmp_path / "gone.ckpt")
    for name in ("edited", "gone"):
        saved = checkpoint.read_checkpoint(tmp_path / f"{name}.ckpt")
        assert saved.networks_file == made


SPEC = spec_of(1, 2, False)


def learner(hidden: int) -> Learner:
    return make_learner(SPEC, hidden_sizes=(hidden,))


@pytest.mark.parametrize("fault", ["another network", "a name", "Adam's", "a moment", "a count"])
def test_a_checkpoint_that_does_not_fit_the_network_is_refused(fault, tmp_path):
    state = learner(5 if fault == "another network" else 6).state_dict()
    if fault == "a name":
        del state["policy.network.0.weight"]
    if fault == "Adam's":
        state["policy_adam.second"] = np.zeros((3, 3), np.float32)
    if fault == "a moment":
        state["returns.squares"] = np.zeros(2)
    if fault == "a count":
        state["updates"] = np.zeros(2)
    config = TrainConfig(resume=tmp_path, hidden_sizes=(6,))
    folder = tmp_path / CHECKPOINTS_NAME
    folder.mkdir()
    state = checkpoint.RunState(checkpoint.Totals(3, 36, 99), state)
    data = checkpoint.encode_checkpoint(state, 1.0, SPEC, config)
    (folder / "00000003.ckpt").write_bytes(data)
    (tmp_path / "metrics.csv").write_text("iteration\n0\n1\n2\n")
    with pytest.raises(UsageError, match="does not fit the network"):
        found, _ = checkpoint.find_checkpoint(config.output.resume)
        transfer.load_state(learner(6), found, tmp_path)


def test_a_run_that_is_extended_has_the_evaluations_of_one_that_never_stopped(tmp_path):
    """The last policy is always evaluated, here after 3 iterations, and counts no more later."""
    run = ("--env", "cartpole", "--episodes-per-iter", "5", "--workers", "0", "--local")
    run += ("--evaluate-every", "2", "--evaluate-episodes", "3", "--learning-rate-decay", "False")
    for folder, iterations in (("whole", "6"), ("run", "3")):
        run_ok(*run, "--iterations", iterations, "--output", folder, cwd=tmp_path)
    short = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in short[1:]] == ["1", "2"]
    run_ok("--resume", "run", "--iterations", "6", cwd=tmp_path)
    for name in ("evaluations.csv", "metrics.csv"):
        ours, whole = ((tmp_path / folder / name).read_bytes() for folder in ("run", "whole"))
        assert ours == whole
    best = [
        checkpoint.read_checkpoint(tmp_path / folder / "checkpoints" / checkpoint.BEST_NAME)
        for folder in ("run", "whole")
    ]
    assert best[0].score == best[1].score and best[0].totals == best[1].totals
