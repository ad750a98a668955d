"""Run a module of this package as a program of its own, which finds modules where this one does."""

from __future__ import annotations

import json
import os
import sys

# Not by PYTHONPATH: a folder whose path has a colon cannot be named there.
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)

# For a program that has a core to itself; more than one BLAS thread would change bits.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


def python_program(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a module, as `python -m` does, and the environment for it."""
    path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
    # -P: modules are found where the parent finds them, and nowhere else.
    command = [sys.executable, "-P", "-c", _RUN, json.dumps(path), module, *arguments]
    # PYTHONPATH is for programs that a simulator starts in its turn.
    named = [entry for entry in path if os.pathsep not in entry]
    return command, os.environ | {"PYTHONPATH": os.pathsep.join(named)}
