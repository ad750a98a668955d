"""The commands of main.py, by the first word of the command line.

Each is a function, in a module of its name, that parses the remaining words and returns the exit
code (None: 0). It imports heavy modules only after parsing, so that `--help` answers at once.
"""

import importlib
from collections.abc import Callable, Sequence

# Besides "train", which needs no word.
COMMANDS = ("evaluate", "watch", "plot", "runs", "export", "check", "profile", "tune")


def import_command(name: str) -> Callable[[Sequence[str]], int | None]:
    """The command of this name; "train" is one, too."""
    return getattr(importlib.import_module(f"flame_rl.commands.{name}"), name)
