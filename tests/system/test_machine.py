"""What the system is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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
