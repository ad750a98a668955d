"""Nothing stays on the cluster: what a run left there is removed, even when the learner has died.

Run as a program, this is a process that outlives the learner just long enough for that. Its
standard input says what there is, a line each: `application NAME`, `session ID`, `weights REF`. It
ends with `dismissed` when there is nothing left; if it ends otherwise, the learner has died.

flamepy is imported where it is used: importing it takes a second of a core, which the program that
only waits must not take from a learner that starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from flame_rl.backends.flame.within import CALL_SECONDS, within

JANITOR_SECONDS = 600.0


class Janitor:
    """Knows what is on the cluster, and a process that removes it if this one dies.

    The process is this module, run as a program. It is told through its standard input, and acts
    when that closes before it is dismissed: after SIGKILL, say, or a second Ctrl-C.
    """

    def __init__(self) -> None:
        self._application: str | None = None
        self._sessions: list[str] = []
        self._weights: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flame_rl.backends.flame.cleanup"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            text=True,
        )

    def remember_application(self, name: str) -> None:
        self._application = name
        self._tell(f"application {name}")

    def remember_session(self, name: str) -> None:
        self._sessions.append(name)
        self._tell(f"session {name}")

    def remember_weights(self, reference: str) -> None:
        self._weights.append(reference)
        self._tell(f"weights {reference}")

    def clean_up(self, seconds: float) -> bool:
        """Remove it all now; whether that was done."""
        return clean_up(self._application, self._sessions, self._weights, seconds)

    def dismiss(self) -> None:
        """There is nothing left to remove."""
        self._tell("dismissed")
        with contextlib.suppress(OSError):  # it has died, and so need not be told
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it is a safety net, not a condition
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def clean_up(
    application: str | None, sessions: list[str], weights: list[str], seconds: float
) -> bool:
    """Close the sessions, unregister the application and delete its objects.

    Closing a session cancels the tasks that have not begun. Flame refuses while others run; their
    executors notice within about a second that the weights are gone, and end them.

    Args:
        application, sessions: their names.
        weights: JSON of references to them.
        seconds: how long to try.

    Returns:
        Whether nothing is left.
    """
    if application is None:
        return True
    limit = time.monotonic() + seconds
    withdrawn = False
    while True:
        if all([closes(session) for session in sessions]):
            if _removes(application):
                return True
        elif not withdrawn:
            withdrawn = True
            for reference in weights:
                _withdraw(reference)
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)


def closes(session: str) -> bool:
    """Whether Flame closes the session, or has forgotten it."""
    from flamepy.core import client

    try:
        client.close_session(session)
    except Exception:
        # The error does not say whether there is such a session.
        with contextlib.suppress(Exception):
            return session not in {each.id for each in client.list_sessions()}
        return False
    return True


def _removes(application: str) -> bool:
    """Whether the application and its objects are gone."""
    from flamepy.core import cache, client

    try:
        if application in {each.name for each in client.list_applications()}:
            client.unregister_application(application)
        prefix = cache.ObjectKey.for_all_sessions(application).to_prefix()
        within(CALL_SECONDS, lambda: cache.delete_objects(prefix))
    except Exception:
        return False
    return True


def _withdraw(reference: str) -> None:
    import numpy as np
    from flamepy.core import cache

    with contextlib.suppress(Exception):
        ref = cache.ObjectRef(**json.loads(reference))
        within(CALL_SECONDS, lambda: cache.update_object(ref, np.empty(0, np.uint8)))


def main() -> None:
    """Remember what the learner says; act when it falls silent undismissed."""
    told: dict[str, list[str]] = {"application": [], "session": [], "weights": []}
    for line in sys.stdin:
        what, _, value = line.rstrip("\n").partition(" ")
        if what == "dismissed":
            return
        told[what].append(value)
    if told["application"]:
        signal.alarm(int(2 * JANITOR_SECONDS))  # whatever happens, this process ends
        clean_up(told["application"][-1], told["session"], told["weights"], JANITOR_SECONDS)


if __name__ == "__main__":
    main()
