"""How this program is started: by main.py in the clone, by `flame-rl` where it is installed."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parent.parent.parent


def from_clone() -> bool:
    """Whether commands are typed as `uv run main.py …`."""
    there = (_ROOT / "main.py").is_file() and (_ROOT / "model.py").is_file()
    return there and Path(sys.argv[0]).name != "flame-rl"


def program(command: str = "") -> str:
    """The first words of the command, in its --help and in starts.jsonl."""
    return f"{'main.py' if from_clone() else 'flame-rl'} {command}".rstrip()


def typed(words: str, extra: str = "") -> str:
    """What a person types for these words; `extra` names packages that the command needs."""
    group = f"--group {extra} " if extra else ""
    return f"uv run {group}main.py {words}" if from_clone() else f"flame-rl {words}"


def installs(extra: str) -> str:
    """What a person types to have the packages of an extra."""
    return typed("…", extra) if from_clone() else f"pip install 'flame-rl[{extra}]'"


def process() -> list[str]:
    """The first words of a process of this program."""
    return [sys.executable, *([str(_ROOT / "main.py")] if from_clone() else ["-m", "flame_rl"])]
