"""What this machine has: cores, memory, a screen."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any

import threadpoolctl


class _OneBlasThread(ContextDecorator):
    """Within the block BLAS uses one thread, as it does in workers: the bits of sums that it
    divides among cores would depend on their number. It is set for the whole process, until the
    last of its threads has left the block."""

    def __init__(self) -> None:
        self._lock, self._blocks = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                found = threadpoolctl.get_cached_controller().select(user_api="blas")
                self._before = [(each, each.get_num_threads()) for each in found.lib_controllers]
                self._set((library, 1) for library, _ in self._before)
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._set(self._before)

    def _set(self, numbers: Iterable[tuple[Any, int]]) -> None:
        for library, number in numbers:
            # threadpoolctl ignores in silence all threads but the one that controls OpenBLAS, which
            # keeps control for itself.
            clear = getattr(library, "clear_controlling_thread", lambda **options: None)
            clear(force=True)
            library.set_num_threads(number)
            clear(force=True)


ONE_BLAS_THREAD = _OneBlasThread()

# Parameters of glibc's mallopt, and what they are set to. Arrays of fewer bytes than the first come
# from memory that the process has already; of that, it gives back what is free beyond the second.
# glibc raises both by itself, but to suit the largest array so far, and a gradient step frees many
# at once.
_MMAP_THRESHOLD = -3, 1 << 25
_TRIM_THRESHOLD = -1, 1 << 28


def keep_freed_memory() -> None:
    """Let this process keep freed memory for its next arrays, up to 256 MiB in each of its heaps;
    this cannot be undone. Otherwise a gradient step may give its memory back to the system, and the
    next step fetches it again page by page, which can take as long as the rest of the step. Without
    effect where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(*_MMAP_THRESHOLD)
        mallopt(*_TRIM_THRESHOLD)


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
