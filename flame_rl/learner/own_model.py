"""The module whose functions make a run's networks: the user's own model.py, or the package's."""

import hashlib
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

import flame_rl
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError

NAME = "model.py"


def model_of(config: TrainConfig) -> ModuleType:
    """The module that --model names; by default a model.py beside the script that was started, or
    in the current folder, or else `flame_rl.model`, the clone's or the wheel's model.py. Raises
    UsageError where there is no such file."""
    own = config.experiment.model
    if own is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        folders = [Path.cwd(), *([Path(script).absolute().parent] if script else [])]
        # By `python -m flame_rl` the script is in the package.
        others = [each for each in reversed(folders) if each != Path(flame_rl.__file__).parent]
        found = [folder / NAME for folder in others if (folder / NAME).is_file()]
        if not found:
            return importlib.import_module("flame_rl.model")
        own = found[0]
    elif own.suffix != ".py" or not own.is_file():
        remedy = "name one with functions as in model.py"
        if not own.exists():
            remedy = f"there is none in {Path.cwd()}; name it from here, or go where it is"
        raise UsageError(f"--model: {own} is no .py file; {remedy}")
    return _load(own.resolve())


@cache  # a module is loaded once: whoever edits its file later changes no network
def file_digest(module: ModuleType) -> str:
    """The SHA-256 of a module's file."""
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()


def _load(path: Path) -> ModuleType:
    """The module in this file; the one that `import model` gives, where it is that."""
    try:
        spec = importlib.util.find_spec("model")
    except ValueError:  # a module that no file made
        spec = None
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
        return importlib.import_module("model")
    name = str(path)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _rebind(module)
    return sys.modules[name]


def _rebind(module: ModuleType) -> None:
    """Let functions that the file imports from `flame_rl.model` call its own in place of those that
    they were written with: who replaces `dense_layers` alone changes every network."""
    package = importlib.import_module("flame_rl.model")
    names = vars(package) | vars(module)
    for name, function in vars(package).items():
        written_there = getattr(function, "__globals__", None) is vars(package)
        if written_there and names[name] is function:
            own = FunctionType(function.__code__, names, name, function.__defaults__)
            own.__doc__, own.__module__ = function.__doc__, package.__name__
            names[name] = own
            if name in vars(module):
                setattr(module, name, own)
