"""Consumers of the training loop's results: the console, files, plots."""

from __future__ import annotations

import sys
from typing import Protocol

from flame_rl.run.results import IterationResult


class Reporter(Protocol):
    """Gets every result of the loop, in order, and then `close` once."""

    def report(self, result: IterationResult) -> None: ...

    def close(self) -> None: ...


class Reporters:
    """Several reporters as one. One that fails (a full disk, say) says so once and is left
    out: it does not stop the training."""

    def __init__(self, reporters: list[Reporter]) -> None:
        self._reporters = reporters

    def report(self, result: IterationResult) -> None:
        for reporter in list(self._reporters):
            try:
                reporter.report(result)
            except Exception as error:
                self._reporters.remove(reporter)
                print(
                    f"warning: {type(reporter).__name__} stops reporting: {error}",
                    file=sys.stderr,
                )

    def close(self) -> None:
        for reporter in self._reporters:
            try:
                reporter.close()
            except Exception as error:
                print(f"warning: {type(reporter).__name__}: {error}", file=sys.stderr)
