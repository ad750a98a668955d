"""What this machine offers."""

from __future__ import annotations

import os


def available_cores() -> int:
    """The cores that this process may use, which in a container are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
