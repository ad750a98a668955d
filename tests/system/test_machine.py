"""What the system is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from flame_rl.system.machine import keep_freed_memory

# Frees 30 arrays of 1 MiB at once, as a gradient step does; prints the MiB that this gives back.
STEP = """
from pathlib import Path
import resource
import numpy as np
from flame_rl.system.machine import keep_freed_memory
if {keep}:
    keep_freed_memory()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
for _ in range(3):
    arrays = [np.ones(1 << 18, np.float32) for _ in range(30)]
    held = resident()
    del arrays
print(held - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("keep", [False, True])
def test_freed_memory_is_kept(keep):
    program = [sys.executable, "-c", STEP.format(keep=keep)]
    given_back = float(subprocess.check_output(program, text=True))
    assert given_back < 2 if keep else given_back > 20


def test_another_c_library_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory()
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.CDLL", None)
    keep_freed_memory()
