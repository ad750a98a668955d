"""The progress bar of a run on a terminal."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class RunBar:
    """The bar of a run, with texts below it; lines are printed above."""

    def __init__(self, counted: str, total: int, completed: int) -> None:
        """`counted` names what is counted, from `completed` to `total`."""
        self._progress = Progress(
            TextColumn(counted),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[returns]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._task = self._progress.add_task(
            "", total=total, completed=completed, returns="", left=""
        )
        self._below: dict[str, str] = {}
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(self._progress, console=console, transient=True)
        self._live.start()

    def advance(self, completed: float, returns: str, left: str) -> None:
        """Move the bar; `returns` and `left` are shown beside it."""
        self._progress.update(self._task, completed=completed, returns=returns, left=left)

    def show(self, what: str, text: str) -> None:
        """Replace the text called `what` below the bar."""
        self._below[what] = text
        # The console wraps nothing by itself, and would cut the text off.
        below = [Text(each, no_wrap=False, overflow="fold") for each in self._below.values()]
        self._live.update(Group(self._progress, *filter(None, below)))

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        self._live.console.print(text)

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()
