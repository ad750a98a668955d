"""A run folder: its name and lock, config.json and starts.jsonl. Imports nothing heavy."""

import contextlib
import fcntl
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import flame_rl
from flame_rl.settings.algorithms import OnPolicySettings
from flame_rl.settings.checks import flag
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.system.files import open_regular, refused_as, write_atomically
from flame_rl.system.program import program, typed

CONFIG_NAME = "config.json"
METRICS_NAME = "metrics.csv"
EVALUATIONS_NAME = "evaluations.csv"
CHECKPOINTS_NAME = "checkpoints"
BEST_NAME = "best.ckpt"
REPLAY_NAME = "replay"
STARTS_NAME = "starts.jsonl"
LOCK_NAME = ".lock"


def check_output(config: TrainConfig) -> None:
    """Raise UsageError if --output cannot be the folder of a new run."""
    folder = config.output.output
    if config.output.resume is not None or folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output: {folder} is a file; name a folder")
    metrics = folder / METRICS_NAME
    begun = metrics.exists() and metrics.stat().st_size > 0
    # A run that failed in its first iteration left nothing to resume; its folder can be used again.
    if begun or any((folder / CHECKPOINTS_NAME).glob("*.ckpt")):
        raise UsageError(f"--output: {folder} holds another run; name another or --resume {folder}")


def make_folder(config: TrainConfig) -> Path:
    """The folder that `output` or `resume` names, or a new one in runs/. Raises OSError."""
    output = config.output
    if (chosen := output.output if output.resume is None else run_of(output.resume)) is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.experiment.env_name)
    stem = f"{name}-{config.algorithm_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path("runs", stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


@contextlib.contextmanager
def hold_folder(config: TrainConfig) -> Iterator[Path]:
    """The run's folder, made if it is not there, and removed if nothing was written to it; within
    the block no other process gets it. Raises UsageError if another process or run has it."""
    with refused_as(UsageError, "--output: cannot write"):
        folder = make_folder(config).absolute()  # an environment may change the directory
        lock = (folder / LOCK_NAME).open("ab")
    with lock:
        try:
            # The system releases the lock when the process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            where = f"another process is writing the run in {path_to_show(folder, Path.cwd())}"
            raise UsageError(f"{where}; wait for its end, or name another folder") from error
        except OSError:
            pass  # a file system without locks
        check_output(config)  # again: another process may have held it until now
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                if [path.name for path in folder.iterdir()] == [LOCK_NAME]:
                    (folder / LOCK_NAME).unlink()
                    folder.rmdir()


def is_held(folder: Path) -> bool:
    """Whether a process is writing the run in this folder."""
    try:
        with (folder / LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # only for a moment
    except OSError as error:  # others: no such file, or a file system without locks
        return isinstance(error, BlockingIOError)
    return False


def runs_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The run folders in a folder, at any depth, and the folders that hold none, in the order of
    their names. A run folder holds itself alone. Raises OSError if the folder cannot be read."""
    if (folder / CONFIG_NAME).exists():
        return [folder], []
    runs, others = [], []
    for path in sorted(folder.iterdir()):
        # A link may lead back up.
        if path.is_dir() and (not path.is_symlink() or (path / CONFIG_NAME).exists()):
            inside, foreign = runs_below(path)
            runs += inside
            others += foreign if inside else [path]
    return runs, others


def run_of(path: Path) -> Path:
    """The run folder that a path names, by itself or by a checkpoint in it."""
    folder = path.absolute().parent
    return folder.parent if folder.name == CHECKPOINTS_NAME and path.is_file() else path


def files_beside(path: Path) -> Path:
    """The folder with what a file that `Trainer.save` wrote leaves to files of its own."""
    return path.with_name(f"{path.name}.{REPLAY_NAME}")


def files_of(path: Path) -> Path:
    """The same of any checkpoint; `path` is a run folder, a checkpoint in one, or such a file."""
    if path.is_dir():
        return path / REPLAY_NAME
    beside, run = files_beside(path), run_of(path)
    return beside if run == path or beside.is_dir() else run / REPLAY_NAME


def path_to_show(folder: Path, here: Path) -> Path:
    """The folder as it is seen from where the user is."""
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write config.json. Raises UsageError if it cannot be written."""
    with refused_as(UsageError, f"--output: cannot write to {folder}"):
        write_atomically(folder / CONFIG_NAME, config.to_json().encode())


def read_config(folder: Path) -> TrainConfig:
    """The configuration in a run folder. Raises OSError, and UsageError for another version's."""
    with open_regular(folder / CONFIG_NAME) as file:
        return TrainConfig.from_json(file.read().decode(errors="replace"))


def saved_config(path: Path) -> TrainConfig:
    """The configuration of the run that is resumed from `path`. Raises UsageError without one."""
    try:
        # Whether it is trusted, a folder does not say itself.
        return read_config(run_of(path)).changed(resume=path, trust=False)
    except OSError as error:
        listed = f"`{typed('runs')}` lists those in runs/"
        raise UsageError(f"--resume: {path} holds no run: {error}; {listed}") from error


def refuse_modules_in(folder: Path, config: TrainConfig) -> None:
    """Raise UsageError for a module of the configuration that lies in the run folder itself, unless
    `config.output.trust`: whoever made the folder could run any code."""
    if config.output.trust:
        return
    refuse_model_in(folder, config)
    experiment = config.experiment
    named = experiment.env_name, experiment.reward, *experiment.wrapper
    if isinstance(config.algorithm, OnPolicySettings):
        named += (config.algorithm.policy_loss, *config.algorithm.auxiliary)
    for module in dict.fromkeys(name.partition(":")[0] for name in named if isinstance(name, str)):
        for place in (*sys.path, "."):
            path = Path(place, *module.split("."))
            # Asked first: other places may be closed to this user.
            inside = module and _lies_in(folder, place, path)
            if inside and (path.is_dir() or any(path.parent.glob(f"{path.name}.*"))):
                raise _untrusted(folder, f"its config.json names the module {module}, which")


def refuse_model_in(folder: Path, config: TrainConfig) -> None:
    """The same of the file with the networks."""
    own = config.experiment.model or Path("model.py")
    if own.is_file() and _lies_in(folder, own.parent, own):
        raise _untrusted(folder, f"the networks' file {own}")


def _lies_in(folder: Path, place: str | Path, path: Path) -> bool:
    """Whether a path below `place` is in the folder, or what it links to."""
    here = Path(place).resolve() / path.relative_to(place)
    return any(each.is_relative_to(folder.resolve()) for each in (here, path.resolve()))


def _untrusted(folder: Path, what: str) -> UsageError:
    remedy = "read it, and give --trust (trust=True in Python) if you trust it"
    return UsageError(f"{folder}: {what} lies in the run folder and would be run; {remedy}")


def refuse_another_run(saved: TrainConfig, given: TrainConfig) -> None:
    """Raise UsageError where flags would change a resumed run, and for modules in its folder."""
    refuse_modules_in(run_of(given.output.resume), given)
    if different := differences(saved, given):
        raise UsageError(
            f"--resume: these flags would make it another run: {different}. Leave them out; or "
            f"begin a run by its other flags from its networks: --from {given.output.resume} --env "
            f"{saved.experiment.env_name} --algorithm {saved.algorithm_name} in place of --resume"
        )


def differences(saved: TrainConfig, given: TrainConfig) -> str:
    """The settings of `given` that make it another run than `saved`, as text; "" if there are none.
    The run's end may change, and what the algorithm's `may_change` names."""
    if saved.algorithm_name != given.algorithm_name:
        return f"--algorithm {saved.algorithm_name} in the run, {given.algorithm_name} now"
    before = vars(saved.experiment) | vars(saved.algorithm)
    now = vars(given.experiment) | vars(given.algorithm)
    free = {"iterations", "env_steps", "stop_at", *saved.algorithm.may_change}
    return "; ".join(
        f"{flag(name)} {value} in the run, {now[name]} now"
        for name, value in before.items()
        if name not in free and value != now[name]
    )


def record_start(folder: Path, arguments: Sequence[str], iterations: int) -> None:
    """Add a line: when the run began or went on, by which words of the command line, after how
    many iterations, with which code and versions. Raises UsageError if that cannot be written."""
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join([program(), *arguments]),
        "iterations": iterations,
        "flame_rl": package_version(),
        "versions": library_versions(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    path = folder / STARTS_NAME
    with refused_as(UsageError, f"--output: cannot write to {path}"), path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def package_version() -> str:
    """The version and, in a git repository of its own, the commit, "-dirty" where files differ."""
    root, version = Path(flame_rl.__file__).parent.parent, flame_rl.__version__
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    # A hook of git sets variables that name another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    how = {"cwd": root, "env": env, "stderr": subprocess.DEVNULL, "timeout": 5.0}
    # There may be no git, or it may not be read.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists():
            version += f", commit {subprocess.check_output(words, text=True, **how).strip()}"
    return version


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide a result's bits, and their choices for this CPU."""
    import torch

    from flame_rl.actor.remote import processor

    names = ("torch", "numpy", "gymnasium", "mujoco", "safetensors")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        **processor(),
        "torch's instruction set": torch.backends.cpu.get_cpu_capability(),
    }
