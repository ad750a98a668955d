"""Consumers of the training loop's results: the console, files, plots."""

from typing import Any

from flame_rl.actor.failure import summary
from flame_rl.run.results import IterationResult
from flame_rl.system.errors import warn


class Reporters:
    """Several as one: each has `report`, which gets every result in order, and then `close`. None
    stops the training: one that the disk refuses says so once and is asked again, because there may
    be room later; one that fails otherwise says so and is left out."""

    def __init__(self, reporters: list[Any]) -> None:
        self._reporters = reporters
        self._refused: set[int] = set()  # by id: two may be of one class

    def report(self, result: IterationResult) -> None:
        for reporter in list(self._reporters):
            name = type(reporter).__name__
            try:
                reporter.report(result)
                self._refused.discard(id(reporter))
            except OSError as error:
                if id(reporter) not in self._refused:
                    self._refused.add(id(reporter))
                    warn(f"warning: {name} cannot write for now: {error}")
            except (Exception, SystemExit) as error:
                self._reporters.remove(reporter)
                warn(f"warning: {name} stops reporting: {summary(error)}")

    def close(self) -> None:
        for reporter in self._reporters:
            try:
                reporter.close()
            except (Exception, SystemExit) as error:
                if not (isinstance(error, OSError) and id(reporter) in self._refused):
                    warn(f"warning: {type(reporter).__name__}: {summary(error)}")
