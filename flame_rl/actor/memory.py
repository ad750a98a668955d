"""The memory of this process, as the system tells it."""

from __future__ import annotations

import contextlib
import resource
import sys


def own_bytes() -> int:
    """What no file backs, now, and so all that a fork has from its beginning; 0 where the system
    does not tell."""
    return _in_status("RssAnon") or 0


def peak_bytes() -> int:
    """The most that was resident so far."""
    # Not getrusage's, which on Linux begins with what the parent had when it forked.
    if (peak := _in_status("VmHWM")) is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _in_status(name: str) -> int | None:
    """A size in /proc/self/status, in bytes; None where there is none."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return None
