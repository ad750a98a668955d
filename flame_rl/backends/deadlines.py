"""The deadline of a task, from the time that earlier tasks took and its number of episodes."""

import threading

from flame_rl.actor.worker.supervisor import Limits
from flame_rl.wire.messages import FailureKind

# The deadline until a first task has succeeded.
FIRST_SECONDS = 600.0
LEAST_SECONDS = 60.0
TIMES_THE_LONGEST = 10.0
# For a task of more episodes than any before it: episodes played one after another take longer than
# those played together.
TIMES_ONE_BY_ONE = 2.0
# Each task that is killed at its deadline doubles the deadlines, up to this factor, until a task of
# its size succeeds.
MOST_ALLOWANCE = 4.0


class Deadlines:
    """Sets the limits of tasks; used by several threads."""

    def __init__(
        self, deadline: float | None, episodes: int, megabytes: int, workers: int = 1
    ) -> None:
        """`deadline`, in seconds, is fixed unless it is None; the others are as in `Limits`."""
        self._fixed = deadline
        self._others = episodes, megabytes, workers
        # The longest task of each number of episodes, in seconds.
        self._longest: dict[int, float] = {}
        self._allowance = 1.0
        self._killed = 0
        self._lock = threading.Lock()

    def limits(self, episodes: int = 1) -> Limits:
        """The limits of the next task, which has this number of episodes."""
        with self._lock:
            return Limits(episodes, self._deadline(episodes), *self._others)

    def note(self, limits: Limits, seconds: float, failure: FailureKind | None) -> None:
        """Note how long a task with these limits took, and how it failed; None: it did not."""
        episodes = limits.episodes
        with self._lock:
            if failure is None:
                self._longest[episodes] = max(seconds, self._longest.get(episodes, 0.0))
                if episodes >= self._killed:
                    self._allowance, self._killed = 1.0, 0
            elif failure == "timeout":
                # Tasks that are killed together, with the same deadline, count once.
                if limits.deadline >= self._deadline(episodes):
                    self._allowance = min(2 * self._allowance, MOST_ALLOWANCE)
                self._killed = max(self._killed, episodes)

    def _deadline(self, episodes: int) -> float:
        if self._fixed is not None:
            return self._fixed
        if not self._longest:
            return FIRST_SECONDS * self._allowance
        one_by_one = min(time * max(1.0, episodes / n) for n, time in self._longest.items())
        longest = TIMES_THE_LONGEST * max(self._longest.values())
        return self._allowance * max(LEAST_SECONDS, longest, TIMES_ONE_BY_ONE * one_by_one)
