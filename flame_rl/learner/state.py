"""What a learner's state is made of, and what is asked of every update."""

import hashlib
from typing import Protocol

import numpy as np

from flame_rl.system.errors import RunError

# Numbers of an update by name, as in metrics.csv.
Metrics = dict[str, float]
# The name of a replay memory among a learner's parts, and of the folder with its files.
REPLAY = "replay"


class Stateful(Protocol):
    """Something with state: an optimiser, running moments, a replay store."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state by name; the next update may change the arrays."""

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Copy what `state_dict` returned. Raises KeyError, TypeError, ValueError or RuntimeError
        if it does not fit."""


class Counter:
    """A count; `Stateful`. `count`: so far."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"count": np.array(self.count)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self.count = count_in(state, "count")


def count_in(state: dict[str, np.ndarray], name: str) -> int:
    """A count in a state. Raises KeyError or ValueError if there is none."""
    if state[name].size != 1 or not 0 <= (count := state[name].item()) == int(count):
        raise ValueError(f"{name}: {state[name]} is no count")
    return int(count)


def arrays_digest(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 in hexadecimal over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def learning_rate_factor(decays: bool, progress: float) -> float:
    """What learning rates are multiplied with after this share of a run: 1, or, where they decay,
    the share that is left, 0 beyond its end."""
    return max(0.0, 1 - progress) if decays else 1.0


def part_of(state: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """A part's own state, in that of its learner."""
    prefix = f"{part}."
    return {n.removeprefix(prefix): a for n, a in state.items() if n.startswith(prefix)}


def refuse_unless_finite(metrics: dict[str, float], state: dict[str, np.ndarray]) -> None:
    """Raise RunError if a metric or an array of the state is NaN or infinite."""
    for name, values in (metrics | state).items():
        if not np.isfinite(values).all():
            raise RunError(
                f"the update was refused: {name.replace('_', ' ')} became NaN or infinite. The "
                "weights are as they were before. Likely causes: too large a learning rate (try a "
                "tenth), or rewards or observations of enormous size (scale them in the "
                "environment)"
            )
