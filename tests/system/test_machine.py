"""What the system is asked for."""

import math
import platform
import subprocess
import sys
from importlib import metadata

import pytest

from flame_rl.system.errors import UsageError
from flame_rl.system.machine import (
    available_cores,
    group_limits,
    physical_bytes,
    refuse_old_packages,
)

# Frees an array of 24 MiB, larger than any before in its process: glibc maps it alone, and unmaps
# it when it is freed, whatever else lies in memory. Prints the MiB that were given back.
FREE = """
from pathlib import Path
import resource
import numpy as np
from flame_rl.system.machine import keep_freed_memory
if {keep}:
    keep_freed_memory()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
resident()
array = np.ones(24 << 18, np.float32)
held = resident()
del array
print(held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("keep", [False, True])
def test_freed_memory_is_kept(keep):
    program = [sys.executable, "-c", FREE.format(keep=keep)]
    given_back = float(subprocess.check_output(program, text=True))
    assert given_back < 2 if keep else given_back > 20


V2 = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}
V1 = {"proc/self/cgroup": "4:memory:/docker/x\n3:cpuacct,cpu:/docker/x\n0::/\n"}
FREE_V1 = {
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({}, (math.inf, math.inf)),
        (V2 | {"sys/fs/cgroup/a/b/memory.max": "max\n"}, (math.inf, math.inf)),
        # The limit of a group around it.
        (V2 | {"sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, (1.5, math.inf)),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4096"}, (math.inf, 4096)),
        (V1 | FREE_V1, (math.inf, math.inf)),
        (V1 | FREE_V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000"}, (0.5, math.inf)),
        (V1 | {"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "99"}, (math.inf, 99)),
    ],
)
def test_limits_of_a_container(tmp_path, files, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert group_limits(tmp_path) == limits


def test_a_container_with_half_a_core_has_one(monkeypatch):
    monkeypatch.setattr("flame_rl.system.machine.group_limits", lambda: (0.5, 1e9))
    assert (available_cores(), physical_bytes()) == (1, 10**9)


@pytest.mark.parametrize("here", ["0.29.1", "1.1.9", "1.2", "1.2.0", "1.10.0", "2.0.0rc1"])
def test_a_package_that_is_too_old_is_named(monkeypatch, here):
    monkeypatch.setattr(metadata, "requires", lambda _: ["gymnasium[mujoco]<3,>=1.2.0"])
    monkeypatch.setattr(metadata, "version", lambda _: here)
    if here in ("0.29.1", "1.1.9"):
        with pytest.raises(UsageError, match=f"gymnasium {here} is too old, and 1.2.0 or later"):
            refuse_old_packages()
    else:
        refuse_old_packages()
