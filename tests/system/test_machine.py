"""What the system is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flame_rl.system.machine import keep_freed_memory

# Allocates and frees as a gradient step does; prints the pages that its later steps fetched.
STEPS = """
import resource
import numpy as np
from flame_rl.system.machine import keep_freed_memory
if {keep}:
    keep_freed_memory()
def step():
    arrays = [np.empty(1 << 18, np.float32) for _ in range(30)]
    for array in arrays:
        array.fill(1)
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux' C library")
def test_freed_memory_is_kept():
    fetched = {
        keep: int(subprocess.check_output([sys.executable, "-c", STEPS.format(keep=keep)]))
        for keep in (False, True)
    }
    page, size = 4096, 30 * (1 << 20)
    assert fetched[False] > 10 * size / page / 2
    assert fetched[True] < 10 * size / page / 20


def test_another_c_library_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory()
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("ctypes.CDLL", None)
    keep_freed_memory()
