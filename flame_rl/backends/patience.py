"""The deadline of a task, set by how long earlier tasks took."""

from __future__ import annotations

import threading

from flame_rl.actor.worker.supervisor import Limits

# The deadline until a first task has succeeded.
FIRST_SECONDS = 600.0
LEAST_SECONDS = 60.0
TIMES_THE_LONGEST = 10.0


class Patience:
    """Sets the limits of tasks by the longest one so far; used by several threads."""

    def __init__(self, deadline: float | None, episodes: int, megabytes: int) -> None:
        """`deadline`, in seconds, is fixed unless it is None; the others are as in `Limits`."""
        self._fixed = deadline
        self._episodes = episodes
        self._megabytes = megabytes
        self._longest: float | None = None
        self._lock = threading.Lock()

    def limits(self) -> Limits:
        """The limits for the next task."""
        deadline = self._fixed
        if deadline is None:
            longest = self._longest
            deadline = (
                FIRST_SECONDS
                if longest is None
                else max(LEAST_SECONDS, TIMES_THE_LONGEST * longest)
            )
        return Limits(deadline, self._episodes, self._megabytes)

    def took(self, seconds: float) -> None:
        """Note how long a task took that succeeded."""
        with self._lock:
            self._longest = max(seconds, self._longest or 0.0)
