"""The progress bar of a run on a terminal."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text


class RunBar(Progress):
    """The bar of a run, its only `task`, with texts `below`, by name; its console prints above."""

    def __init__(self, counted: str, total: int, done: int) -> None:
        """`counted` names what is counted, from `done` to `total`."""
        self.below: dict[str, str] = {}
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        texts = "{task.fields[returns]}", TimeElapsedColumn(), "{task.fields[left]}"
        columns = counted, BarColumn(), MofNCompleteColumn(), *texts
        super().__init__(*columns, console=console, transient=True)
        self.task = self.add_task("", total=total, completed=done, returns="", left="")
        self.start()

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar and the texts."""
        yield from super().get_renderables()
        # The console wraps nothing by itself, and would cut the text off.
        for text in filter(None, self.below.values()):
            yield Text(text, no_wrap=False, overflow="fold")
