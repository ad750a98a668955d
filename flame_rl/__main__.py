"""The command line, of main.py in the clone and of `flame-rl` or `python -m flame_rl` where the
package is installed: the first word is a command, and without one it trains."""

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import flame_rl
from flame_rl.commands import import_command
from flame_rl.system.errors import Answered, RunError, UsageError, warn
from flame_rl.system.files import why_refused
from flame_rl.system.program import from_clone

# What a Python without this project's environment lacks; see pyproject.toml.
NEEDED = ("gymnasium", "msgspec", "numpy", "safetensors", "threadpoolctl", "torch", "tyro")


def main() -> int:
    """The command line. Returns the exit code: 0, 1 for a run that failed, 2 for bad input, 130
    after Ctrl-C, 143 after SIGTERM."""
    try:
        return run_command(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except Answered as end:
        return end.code
    except SystemExit as end:  # of an environment, a network, a tracker, …
        file, line, name, _ = traceback.extract_tb(end.__traceback__)[-1]
        warn(
            f"error: sys.exit() in {name} ({file}, line {line}) would end this program without a "
            "word; raise an exception there"
        )
        return 1
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        remedy = "uv run main.py …" if from_clone() else "pip install flame-rl"
        warn(f"error: {error}; `{remedy}` installs what is missing (README.md)")
        return 2
    except RuntimeError as error:
        if str(error) != "can't start new thread":
            raise
        warn(f"error: {error}: raise the limits of this process (ulimit -v, ulimit -u)")
        return 1
    except (UsageError, RunError, OSError) as error:
        text = why_refused(error) if isinstance(error, OSError) else error
        warn("\n".join([f"error: {text}", *getattr(error, "__notes__", [])]))
        return 2 if isinstance(error, UsageError) else 1


def run_command(words: list[str]) -> int:
    """Run the command that the first word names, or else training; returns the exit code."""
    name = "train"
    if words == ["--version"]:
        print(f"flame-rl {flame_rl.__version__}")
        return 0
    if words and not words[0].startswith("-"):
        name, *words = words
    # Libraries that try an import may swallow KeyboardInterrupt; nothing has begun that needs it.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from flame_rl.system.machine import refuse_old_packages  # which needs a package itself

    refuse_old_packages()
    try:
        run = import_command(name)
    finally:
        signal.signal(signal.SIGINT, before)
    return run(words) or 0


def end(code: int) -> NoReturn:
    """End the process with this exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # Not sys.exit, which would wait for threads blocked on a server that never answers.
    os._exit(code)


def command() -> NoReturn:
    """The console command `flame-rl`. Modules in the current folder are found, as by `python -m`;
    the first place is the folder of the command itself."""
    sys.path[0] = str(Path.cwd())
    end(main())


if __name__ == "__main__":
    end(main())
