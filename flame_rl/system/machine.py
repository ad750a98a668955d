"""What this machine has: cores, memory, a screen."""

from __future__ import annotations

import os
import sys


def available_cores() -> int:
    """The number of cores that this process may use: in a container, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_bytes() -> int:
    """The size of physical memory, free or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def has_display() -> bool:
    """Whether there is a screen, as far as can be told without opening a window."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
