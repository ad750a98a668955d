"""Work in a fork of this process."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from flame_rl.actor.simulators.forked import in_fork


def test_forks_of_threads_take_turns(monkeypatch):
    """Some libraries refuse one beside another."""
    fork, alone = os.fork, threading.Lock()

    def refusing():
        assert alone.acquire(blocking=False), "another thread forks"
        try:
            time.sleep(0.05)
            return fork()
        finally:
            alone.release()

    monkeypatch.setattr(os, "fork", refusing)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(in_fork, lambda note, _: note({"number": 1})) for _ in range(2)]
        assert [each.result() for each in done] == 2 * [({"number": 1}, "")]
