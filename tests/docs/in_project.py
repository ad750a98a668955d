"""Run Python in a copy of the project, in a fork of a process that has imported the libraries.

Importing torch takes longer than most of the pages' commands. The package itself is imported anew
for each of them, from the copy; nothing of it may be imported here.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

_LIBRARIES = ["gymnasium", "matplotlib.pyplot", "mujoco", "torch"]
_SECONDS = 1200


def run_commands(commands: list[list[str]]) -> None:
    """Run commands of main.py one after another."""
    import main

    for words in commands:
        assert main.run_command(words) == 0, words


def run_code(code: str) -> None:
    exec(compile(code, "<block>", "exec"), {"__name__": "__main__"})


def run_script(name: str) -> None:
    runpy.run_path(name, run_name="__main__")


def run_in(
    project: Path, environment: dict[str, str], function: Callable[..., None], argument: object
) -> None:
    """Call one of these functions as if Python had been started in that folder; fails with all that
    it printed if it does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    output = project / "printed"
    arguments = (project, environment, output, function, argument)
    process = context.Process(target=_run, args=arguments)
    process.start()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode == 0, f"{argument}\n{output.read_text()}"


def _run(
    project: Path,
    environment: dict[str, str],
    output: Path,
    function: Callable[..., None],
    argument: object,
) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.chdir(project)
    os.environ.clear()
    os.environ.update(environment)
    own = Path(__file__).parents[2]
    sys.path[:] = [str(project), *(entry for entry in sys.path if Path(entry) != own)]
    function(argument)
