"""The ways in which a run ends early; and printing, which ends none, even where nobody reads."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


class UsageError(Exception):
    """What the user asked for cannot be done; the message names the field, cause and remedy. The
    command line answers it with exit code 2 and no traceback."""


class RunError(Exception):
    """A run could not go on after it began; the message says what was tried. The command line
    answers it with exit code 1, after saving what was learned. `episode`: the index of the one
    training episode that is to blame, if there is one."""

    def __init__(self, message: str, episode: int | None = None) -> None:
        super().__init__(message)
        self.episode = episode


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The user asked the run to stop, by Ctrl-C or SIGTERM."""


class Answered(SystemExit):
    """--help is answered, or a flag cannot be read. Any other SystemExit is of a user's code."""


def say(text: str) -> None:
    """Print to standard output at once."""
    _print(text, sys.stdout)


def warn(text: str) -> None:
    """Print to standard error at once."""
    _print(text, sys.stderr)


@contextlib.contextmanager
def nothing_but_json(wanted: bool) -> Iterator[None]:
    """Within the block, if wanted, what is printed to standard output goes to standard error."""
    if not wanted:
        yield
        return
    kept = None
    with contextlib.suppress(OSError):  # closed
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def _print(text: str, stream: TextIO | None) -> None:
    if stream is None:  # closed before Python began
        return
    try:
        print(text, file=stream, flush=True)
    except ValueError:  # closed since then
        pass
    except OSError:
        # Nobody reads (`| head`), or the disk is full: be silent from now on, at Python's end, too.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
