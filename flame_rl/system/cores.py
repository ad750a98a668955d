"""The number of cores."""

from __future__ import annotations

import os


def available_cores() -> int:
    """The number of cores that this process may use: in a container, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
