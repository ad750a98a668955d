"""The random numbers of each episode: a seed for its environment, and noise for its actions."""

import numpy as np

from flame_rl.nets.acting import ActingPolicy, Rows
from flame_rl.wire.messages import CollectRequest, Stream

# The seeds of a training episode have the keys (iteration, index, 0) and, for the noise of each
# agent, (iteration, index, 1), (iteration, index, 2), …; those of other streams are longer.
_STREAM_KEYS = {"training": (), "validation": (2,), "evaluation": (3,)}


def reset_seed(run_seed: int, iteration: int, index: int, stream: Stream = "training") -> int:
    """The seed with which an episode resets its environment."""
    sequence = _sequence(run_seed, iteration, index, stream, 0)
    # Gymnasium takes non-negative seeds; 31 bits suit environments that keep them in an int32.
    return int(sequence.generate_state(1)[0] >> 1)


def seed_of(request: CollectRequest, index: int) -> int:
    """The reset seed of an episode of `request`, or of that which a fragment goes on with."""
    if (start := request.starts.get(index)) is not None:
        return start.seed
    return reset_seed(request.run_seed, request.iteration, index, request.stream)


def noise_generator(
    run_seed: int, iteration: int, index: int, stream: Stream = "training", agent: int = 0
) -> np.random.Generator:
    """The generator of the noise in the actions of one agent in an episode."""
    return np.random.default_rng(_sequence(run_seed, iteration, index, stream, 1 + agent))


def acting_generator(seed: int) -> np.random.Generator:
    """A generator of actions outside of runs' episodes. It is no environment's: reset with a seed,
    Gymnasium's draws from `default_rng(seed)`. Nor an update's, whose spawn key is one number."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, 0)))


def _sequence(
    run_seed: int, iteration: int, index: int, stream: Stream, child: int
) -> np.random.SeedSequence:
    key = (iteration, index, *_STREAM_KEYS[stream], child)
    return np.random.SeedSequence(run_seed, spawn_key=key)


class Noise:
    """The random numbers with which actions are sampled, a column for each slot and a row for each
    lock step of a block; none if the request does not explore. An episode's numbers depend on its
    own generator alone, and on its own last row, however many are drawn at a time."""

    def __init__(
        self, policy: ActingPolicy, request: CollectRequest, steps: int, width: int
    ) -> None:
        """`steps` is the number of lock steps in a block, `width` that of slots."""
        self._policy, self._request = policy, request
        self._rows = np.zeros((steps, width, policy.head.noise_width))
        # For each slot that plays: the generator, and the last row drawn from it, None at first.
        self._playing: dict[int, tuple[np.random.Generator, np.ndarray | None]] = {}

    def of(self, row: int, slots: Rows) -> np.ndarray | None:
        """The numbers of slots for a lock step, float64 [n, noise_width]; None: none are drawn."""
        return self._rows[row, slots] if self._request.explore else None

    def begin(self, row: int, slots: np.ndarray, episodes: np.ndarray) -> None:
        """Episodes of these numbers, int [n], begin in these slots, int [n], at a row of the block,
        or of the next one where this is full. Agents of one index have neighbouring numbers."""
        request = self._request
        if not request.explore:
            return
        for slot, episode in zip(slots.tolist(), episodes.tolist(), strict=True):
            place, agent = divmod(episode, request.agents)
            key = request.run_seed, request.iteration, request.indices[place], request.stream
            self._playing[slot] = noise_generator(*key, agent), None
            if row < len(self._rows):
                self._draw(slot, row)

    def end(self, slots: np.ndarray) -> None:
        for slot in slots.tolist():
            self._playing.pop(slot, None)

    def next_block(self) -> None:
        for slot in self._playing:
            self._draw(slot, 0)

    def _draw(self, slot: int, row: int) -> None:
        generator, before = self._playing[slot]
        drawn = self._policy.draw_noise(generator, len(self._rows) - row, before)
        self._rows[row:, slot] = drawn
        self._playing[slot] = generator, drawn[-1]
