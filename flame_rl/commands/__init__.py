"""The commands, by the first word of the command line: functions in modules of their names, which
parse the other words, import what is heavy, and return the exit code (None: 0)."""

import importlib
from collections.abc import Callable, Sequence

from flame_rl.system.errors import UsageError
from flame_rl.system.program import typed

# Without a word, it is "train".
COMMANDS = {
    "train": "train a policy, the command without a word",
    "evaluate": "say how good a saved policy is",
    "watch": "show a policy in a window or as a film",
    "plot": "draw the learning curves of runs",
    "runs": "list runs, how far they are and how good",
    "export": "write a policy as an ONNX file",
    "check": "examine an environment before training in it",
    "profile": "say how many workers are worth it",
    "tune": "search the settings of an algorithm",
}


def import_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """The command of this name. Raises UsageError where there is none."""
    if name not in COMMANDS:
        from flame_rl.settings.checks import did_you_mean

        meant = did_you_mean(name, COMMANDS, f"there are {', '.join(COMMANDS)}.")
        training = f"Without one, training: {typed('--env ant')}"
        raise UsageError(f"{name}: no command; {meant} {training}")
    return getattr(importlib.import_module(f"flame_rl.commands.{name}"), name)
