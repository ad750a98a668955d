"""What this machine has: cores, memory, a screen, optional packages."""

import ctypes
import importlib
import math
import os
import re
import resource
import sys
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import threadpoolctl

from flame_rl.system.errors import UsageError
from flame_rl.system.program import installs


class _OneBlasThread(ContextDecorator):
    """Within the block BLAS uses one thread, as in workers: how it divides a sum among threads
    changes the bits. It is set for the whole process, until its last thread has left the block."""

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
            # Otherwise threadpoolctl ignores all threads but the first that set the number.
            clear = getattr(library, "clear_controlling_thread", lambda **options: None)
            clear(force=True)
            library.set_num_threads(number)
            clear(force=True)


ONE_BLAS_THREAD = _OneBlasThread()
# The threads that are in the block, one of which may hold the lock, do not survive a fork.
os.register_at_fork(after_in_child=ONE_BLAS_THREAD.__init__)


def keep_freed_memory() -> None:
    """Let this process keep freed memory for its next arrays, for good: fetching it again page by
    page can take as long as the rest of a gradient step. Without effect but with glibc."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD: arrays below 32 MiB come from the heap,
        libc.mallopt(-1, 1 << 28)  # M_TRIM_THRESHOLD: which keeps 256 MiB of free memory


def available_cores() -> int:
    """The number of cores that this process may use: in a container, fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return math.ceil(min(cores, group_limits()[0]))


def physical_bytes() -> int:
    """The size of physical memory, free or not; in a container, or with a limit of the process
    (ulimit -v), of what it may use of that."""
    there, limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), group_limits()[1]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    unlimited = address_space == resource.RLIM_INFINITY
    return int(min(there, limit, math.inf if unlimited else address_space))


@cache
def group_limits(root: Path = Path("/")) -> tuple[float, float]:
    """The cores and the bytes that this process may use by its control groups, of version 1 or 2;
    infinite where they set no limit. `root` is the folder of the whole system."""
    cores = memory = math.inf

    def numbers(folder: Path, *names: str) -> list[float]:
        files = [folder / name for name in names if (folder / name).is_file()]
        words = [word for file in files for word in file.read_text().split()]
        return [math.inf if word in ("max", "-1") else float(word) for word in words]

    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):  # version 2 has one folder for all
                group = root / "sys/fs/cgroup" / controller / path.strip("/")
                # A container may see its own group at the top, whatever its path says.
                for folder in (group, *group.parents):
                    if quota := numbers(folder, "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
                        cores = min(cores, quota[0] / quota[1])
                    limits = numbers(folder, "memory.max", "memory.limit_in_bytes")
                    memory = min([memory, *limits])
    return cores, memory


def has_display() -> bool:
    """Whether there is a screen, as far as can be told without opening a window."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(named) or sys.platform in ("darwin", "win32")


def require(module: str, package: str, group: str) -> ModuleType:
    """Import a module of a package of an optional group. Raises UsageError if that fails."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the package {package} is needed and cannot be imported ({error}): "
            f"`{installs(group)}` installs it"
        ) from error


def refuse_old_packages() -> None:
    """Raise UsageError where a package is older than required, as `uv run --with` may have it."""
    with suppress(metadata.PackageNotFoundError):  # one that is not installed is not old
        requirements = "\n".join(metadata.requires("flame-rl") or ())
        for name, least in re.findall(r"(?m)^([\w.-]+)[^;\n]*>=([\d.]+)[^;\n]*$", requirements):
            if _numbers(here := metadata.version(name)) < _numbers(least):
                raise UsageError(
                    f"{name} {here} is too old, and {least} or later is needed; another package "
                    f"may have brought it: add --with '{name}>={least}' to `uv run`"
                )


def _numbers(version: str) -> list[int]:
    """The numbers of a version, without zeros at its end, to compare."""
    return [int(n) for n in re.sub(r"(\.0)+$", "", re.match(r"\d+(\.\d+)*", version)[0]).split(".")]
