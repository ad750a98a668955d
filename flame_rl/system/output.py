"""Printing where nobody may read: a stream that is closed or full never ends a run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


def say(text: str) -> None:
    """Print to standard output at once."""
    _print(text, sys.stdout)


def warn(text: str) -> None:
    """Print to standard error at once."""
    _print(text, sys.stderr)


@contextlib.contextmanager
def nothing_but_json(wanted: bool) -> Iterator[None]:
    """Within the block, what environments and libraries print to standard output goes to standard
    error, if that is wanted."""
    if not wanted:
        yield
        return
    own, kept = sys.stdout, None
    with contextlib.suppress(OSError):  # closed
        kept = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = own
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
        # Nobody reads (`| head`), or the disk is full: be silent from now on, and let nothing that
        # is still in the stream's buffer fail again when Python ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
