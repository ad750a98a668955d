"""What each executor runs, as it says with every answer, beside what this machine runs."""

from __future__ import annotations

import json
from collections.abc import Callable

from flame_rl.actor.remote import processor, versions
from flame_rl.system.errors import UsageError
from flame_rl.wire.packing import WireError

# Far above what an executor says of itself.
MOST_BYTES = 4096


class Hosts:
    """Heard by the threads that fetch answers, asked by the one that collects."""

    def __init__(self) -> None:
        self._versions, self._processor = versions(), processor()
        self._heard: set[bytes] = set()
        # By their difference, the nodes of which nobody has been told yet.
        self._refused: dict[str, set[str]] = {}
        self._unequal: dict[str, set[str]] = {}
        self._python = ""

    def hear(self, about: bytes) -> None:
        """Note what an executor says of itself, JSON. Raises WireError if it is not readable."""
        if about in self._heard:
            return
        try:
            theirs = json.loads(about[:MOST_BYTES])
            node = theirs["node"]
            if not all(isinstance(value, str) for value in theirs.values()):
                raise TypeError("not text")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WireError(f"about: what an executor says of itself: {error}") from error
        self._heard.add(about)
        if difference := _difference(self._versions, theirs):
            self._python = theirs.get("python", "X.Y")
            self._refused.setdefault(difference, set()).add(node)
        elif difference := _difference(self._processor, theirs):
            self._unequal.setdefault(difference, set()).add(node)

    def refuse_others(self) -> None:
        """Raise UsageError if executors run other versions."""
        for difference, nodes in list(self._refused.items()):
            raise UsageError(
                f"{_named(nodes, 'runs', 'run')} other versions than this machine: {difference}. "
                "The same seed would not give the same result; start with `uv run --python "
                f"{self._python} main.py …` if all nodes run that Python, take the node out of the "
                "cluster, or use --local"
            )

    def tell(self, say: Callable[[str], None]) -> None:
        """Say which nodes round in another way, once for each node."""
        unequal, self._unequal = self._unequal, {}
        for difference, nodes in unequal.items():
            say(
                f"{_named(nodes, 'has', 'have')} another processor than this machine: "
                f"{difference}. The same seed may give another result than on this machine alone"
            )


def _difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    return "; ".join(
        f"{name} {ours[name]} here, {theirs.get(name, 'unknown')} there"
        for name in ours
        if theirs.get(name) != ours[name]
    )


def _named(nodes: set[str], one: str, several: str) -> str:
    names = ", ".join(sorted(nodes))
    return f"Node {names} {one}" if len(nodes) == 1 else f"Nodes {names} {several}"
