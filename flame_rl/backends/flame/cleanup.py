"""Nothing stays on the cluster: what a run left there is removed, even when the learner has died.

Run as a program, this is a process that outlives the learner just long enough for that. A pipe
tells it what is there, one a line: `application NAME`, `session ID`, `weights REF`, `cache
ENDPOINT`. The last line is `dismissed` if nothing is left.

flamepy, whose import takes a second, is imported where it is used: this process may only wait."""

import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections import defaultdict

from flame_rl.actor.worker.process import ChildProcess
from flame_rl.system.signals import call_with_timeout

JANITOR_SECONDS = 600.0
# How long `Janitor.clean_up` tries to remove everything before that is left to the process.
DRAIN_SECONDS = 3.5
# For a call of the configured cache, and of one beside it.
_CACHE_SECONDS = 5.0
_REPLICA_SECONDS = 1.0
# An executor ends a task within about a second of its weights' removal; its answer may come first.
_LATE_SECONDS = 2.0
Left = defaultdict[str, list[str]]  # names by their kind, see `Janitor.remember`


class Janitor:
    """Remembers what the run has on the cluster; a second process, this module as a program,
    removes it if its pipe closes before it is dismissed: after SIGKILL, or a second Ctrl-C."""

    def __init__(self) -> None:
        self._left: Left = defaultdict(list)
        self._process = ChildProcess(__name__, silent=True)

    def remember(self, kind: str, name: str) -> None:
        """Remember an "application" by its name, a "session" by its id, "weights" in the object
        cache by their reference as JSON, or a "cache" by its endpoint. Twice is once."""
        if name not in self._left[kind]:
            self._left[kind].append(name)
            self._tell(f"{kind} {name}")

    def clean_up(self) -> bool:
        """Remove everything now; returns whether nothing is left."""
        with contextlib.suppress(TimeoutError):
            return call_with_timeout(DRAIN_SECONDS, lambda: clean_up(self._left, DRAIN_SECONDS))
        return False

    def end(self, dismissed: bool) -> None:
        """Remember no more. Unless it is dismissed, because nothing is left, the process removes
        everything, a few seconds from now: weights or answers may arrive late."""
        if dismissed:
            self._tell("dismissed")
        self._process.questions.close()
        if dismissed:
            self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a run goes on without this safety net
            self._process.questions.write(f"{line}\n".encode())


def clean_up(left: Left, seconds: float) -> bool:
    """Close the sessions, delete their objects, and unregister the application unless other runs
    have sessions of it; returns whether nothing is left. Flame closes no session while tasks of it
    run; their executors notice within about a second that the weights are gone, and end them."""
    from flame_rl.backends.flame.compat import close_session

    limit = time.monotonic() + seconds
    withdrawn = False
    while True:
        if all([close_session(session) for session in left["session"]]):
            if all(_remove(application, left) for application in left["application"]):
                return True
        elif not withdrawn:
            withdrawn = True
            for reference in left["weights"]:
                withdraw(reference)
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)


def _remove(application: str, left: Left) -> bool:
    """Remove the run's objects, and the application unless others use it; returns whether."""
    from flamepy.core import client, types

    try:
        for session in left["session"]:
            _delete_everywhere(f"{application}/{session}", left["cache"])
        if client.get_application(application) is not None:
            with contextlib.suppress(client.FlameError):
                client.unregister_application(application)
            if client.get_application(application) is not None:
                # Others use it, or Flame is stuck.
                return any(
                    session.application == application
                    and session.state == types.SessionState.OPEN
                    and session.id not in left["session"]
                    for session in client.list_sessions()
                )
        _delete_everywhere(f"{application}/pkg", left["cache"])
    except Exception:
        return False
    return True


def _delete_everywhere(path: str, caches: list[str]) -> None:
    """Delete the objects with this prefix in the configured cache, and in others if they answer."""
    from flamepy.core import cache

    from flame_rl.backends.flame.compat import delete_objects

    call_with_timeout(_CACHE_SECONDS, lambda: cache.delete_objects(path))
    for endpoint in caches:
        with contextlib.suppress(Exception):
            call_with_timeout(_REPLICA_SECONDS, functools.partial(delete_objects, endpoint, path))


def withdraw(reference: str) -> None:
    """Empty the weights of this reference, JSON, on which executors end their tasks, if it can."""
    import numpy as np
    from flamepy.core import cache

    with contextlib.suppress(Exception):
        ref = cache.ObjectRef(**json.loads(reference))
        call_with_timeout(_CACHE_SECONDS, lambda: cache.update_object(ref, np.empty(0, np.uint8)))


def main(lines: int) -> None:
    """Clean up if the lines of this pipe end without `dismissed`."""
    left: Left = defaultdict(list)
    for line in os.fdopen(lines):
        kind, _, name = line.rstrip("\n").partition(" ")
        if kind == "dismissed":
            return
        left[kind].append(name)
    signal.alarm(int(2 * JANITOR_SECONDS))  # whatever happens, this process ends
    if clean_up(left, JANITOR_SECONDS):
        time.sleep(_LATE_SECONDS)
        clean_up(left, _LATE_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
