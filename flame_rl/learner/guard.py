"""Undo a failed update, so that an iteration is done as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flame_rl.learner.state import Part


@contextmanager
def undone_on_failure(learner: Part) -> Iterator[None]:
    """Around an update and its evaluation: a block that an exception ends, Ctrl-C
    included, leaves the learner as it was before."""
    before = {name: array.copy() for name, array in learner.state_dict().items()}
    try:
        yield
    except BaseException:
        learner.load_state_dict(before)
        raise
