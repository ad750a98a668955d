"""A Flame cluster for the benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flame_fixtures import real_cluster


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Within the block, trainers without `local` collect on the configured cluster, or on one
    started from Flame's binaries. Without either, the benchmark ends."""
    # An exception, so that SIGTERM stops the servers that were started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flame-")))
        try:
            environment = stack.enter_context(real_cluster(folder))
        except pytest.skip.Exception as none:
            sys.exit(str(none))
        os.environ |= environment
        yield
