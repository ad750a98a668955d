"""A progress bar for films, which may take long."""

from __future__ import annotations

import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Quicker work shows no bar.
SHOWN_AFTER_SECONDS = 2.0


class LateBar:
    """A context: on a terminal, a bar that appears after two seconds and is removed at the end.

    Elsewhere nothing, so that a pipe gets the printed lines alone.
    """

    def __init__(self, total: int | None) -> None:
        """`total` is the number of env steps; None: unknown."""
        self._show_at = time.monotonic() + SHOWN_AFTER_SECONDS
        self._terminal = sys.stdout is not None and sys.stdout.isatty()
        self._shown = False
        self._progress = Progress(
            TextColumn("Drawing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("env steps"),
            TimeRemainingColumn(),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> LateBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._progress.stop()

    def advance(self) -> None:
        """One env step is drawn."""
        self._progress.advance(self._task)
        if self._terminal and not self._shown and time.monotonic() >= self._show_at:
            self._shown = True
            self._progress.start()

    def shorten(self, steps: int) -> None:
        """That many env steps turned out not to be needed."""
        total = self._progress.tasks[0].total
        if total is not None:
            self._progress.update(self._task, total=total - steps)
