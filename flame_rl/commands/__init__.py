"""The commands of main.py, by the first word of the command line.

Each is a function that parses the remaining words with tyro and returns the exit code (None: 0). It
imports heavy modules only after parsing, so that `--help` answers at once.
"""

from collections.abc import Callable, Sequence

Command = Callable[[Sequence[str]], int | None]

# Besides training, which needs no word.
COMMANDS = ("evaluate", "watch", "plot", "runs", "export", "check", "profile", "tune")


def import_command(name: str) -> Command:
    """The command of this name; "train" is one, too."""
    match name:
        case "train":
            from flame_rl.commands.train import train as command
        case "evaluate":
            from flame_rl.commands.evaluate import evaluate as command
        case "watch":
            from flame_rl.commands.watch import watch as command
        case "plot":
            from flame_rl.commands.plot import plot as command
        case "runs":
            from flame_rl.commands.runs import runs as command
        case "export":
            from flame_rl.commands.export import export as command
        case "check":
            from flame_rl.commands.check import check as command
        case "profile":
            from flame_rl.commands.profile import profile as command
        case "tune":
            from flame_rl.commands.tune import tune as command
    return command
