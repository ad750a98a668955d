"""A process that outlives the learner just long enough to remove what it left on a cluster.

Its standard input says what there is, a line each: `application NAME`, `session ID`, `weights REF`.
It ends with `dismissed` when there is nothing left; if it ends otherwise, the learner has died.
"""

from __future__ import annotations

import sys


def main() -> None:
    told: dict[str, list[str]] = {"application": [], "session": [], "weights": []}
    for line in sys.stdin:
        what, _, value = line.rstrip("\n").partition(" ")
        if what == "dismissed":
            return
        told[what].append(value)
    if not told["application"]:
        return
    # Not before: this takes a second of a core, and the learner is starting.
    from flame_rl.backends.flame import JANITOR_SECONDS, clean_up

    clean_up(told["application"][-1], told["session"], told["weights"], JANITOR_SECONDS)


if __name__ == "__main__":
    main()
