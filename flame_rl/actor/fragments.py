"""Episodes longer than an iteration are played in fragments. Who has the simulator where the last
one ended goes on; anybody else plays the episode's actions again, from where the simulator stands
in it, or from a reset with the episode's seed."""

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from flame_rl.actor.failure import SimulatorError, invalid
from flame_rl.actor.randomness import seed_of
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.wire.messages import CollectRequest, Column, Episode, Episodes, Start

_LOOK_STEPS = 256  # steps between two looks at whether the answer is still wanted


def starts_after(request: CollectRequest, episodes: Episodes) -> dict[int, Start]:
    """By index, where the fragments end that others go on with; `episodes` answer `request`."""
    if request.fragment_steps is None:
        return {}
    unfinished = (each for each in episodes if not (each.terminated or each.truncated))
    return {episode.index: _after(request, episode) for episode in unfinished}


def next_starts(request: CollectRequest, episodes: Episodes) -> dict[int, Start]:
    """The starts of the next iteration's fragments. Each keeps its index, so that the same worker
    may get it, below the number of fragments that an iteration has if none ends early; those beyond
    it, which are at most as many as have ended below it, take the indices of these."""
    starts = starts_after(request, episodes)
    needed = math.ceil(request.steps / request.fragment_steps) if starts else 0
    free = (index for index in count() if index not in starts)
    return {i if i < needed else next(free): start for i, start in starts.items()}


def _after(request: CollectRequest, episode: Episode) -> Start:
    actions, so_far = episode.actions.copy(), float(episode.rewards.sum())
    if (before := request.starts.get(episode.index)) is not None:
        actions, so_far = np.concatenate([before.actions, actions]), before.so_far + so_far
    last = {name: column[-1] for name, column in episode.columns.items()}
    digest = _digest(request.columns, last)
    return Start(seed_of(request, episode.index), actions, digest, so_far)


def choose_slots(simulator: Simulator, starts: Sequence[Start | None]) -> np.ndarray:
    """A slot for each fragment, int [n]: where the simulator stands nearest before its start; else
    preferably one where it stands in no episode."""
    paused, chosen = dict(simulator.paused), []
    for start in starts:
        done = {slot: _done(there, start) for slot, there in paused.items()}
        nearest = max(done, key=done.get, default=-1)
        chosen.append(nearest if done.get(nearest, 0) > 0 else -1)
        paused.pop(chosen[-1], None)
    free = {*range(simulator.slots)} - {*chosen}
    others = iter(sorted(free, key=lambda slot: (slot in simulator.paused, slot)))
    return np.array([next(others) if slot < 0 else slot for slot in chosen])


def steps_done(simulator: Simulator, starts: dict[int, Start | None]) -> dict[int, int]:
    """How many steps before its start the simulator has already taken, by slot, ascending; 0: it
    must be reset. These slots are no longer among those that are `paused`."""
    held = {slot: simulator.paused.pop(slot, None) for slot in sorted(starts)}
    return {slot: _done(there, starts[slot]) for slot, there in held.items()}


def _done(there: Start | None, wanted: Start | None) -> int:
    if there is None or wanted is None or there.seed != wanted.seed:
        return 0
    steps = len(there.actions)
    return steps if np.array_equal(there.actions, wanted.actions[:steps]) else 0


def play_again(
    simulator: Simulator,
    columns: Sequence[Column],
    starts: dict[int, Start],
    done: dict[int, int],
    withdrawn: Callable[[], bool],
) -> None:
    """Take the recorded steps before these starts, by slot, ascending, but those that are `done`.
    Raises SimulatorError where an episode is another one this time."""
    lacking = {slot: start.actions[done[slot] :] for slot, start in starts.items()}
    first = next(iter(lacking.values()))
    actions = np.zeros((simulator.slots, *first.shape[1:]), first.dtype)
    for step in range(max(map(len, lacking.values()))):
        if step % _LOOK_STEPS == 0 and withdrawn():
            raise SimulatorError("stale", "the learner has withdrawn this task")
        left = [slot for slot, recorded in lacking.items() if len(recorded) > step]
        for slot in left:
            actions[slot] = lacking[slot][step]
        slots = np.array(left, np.int64)
        simulator.step(actions, slots)
        if (ended := simulator.terminated[slots] | simulator.truncated[slots]).any():
            slot = int(slots[ended.argmax()])
            raise _differs(slot, done[slot] + step + 1, "has ended")
    for slot, start in starts.items():
        now = {name: array[slot] for name, array in simulator.recorded.items()}
        if _digest(columns, now) != start.observed:
            raise _differs(slot, len(start.actions), "is in another state")


def _digest(columns: Sequence[Column], row: dict[str, np.ndarray]) -> int:
    """A hash of those columns of a row that come with an observation."""
    hashed = hashlib.blake2b(digest_size=8)
    for column in columns:
        if column.per_observation:
            hashed.update(row[column.name].astype(column.dtype).tobytes())
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _differs(slot: int, steps: int, how: str) -> SimulatorError:
    return invalid(
        f"the environment does not repeat itself: with the same seed and the same {steps:,} "
        f"actions it {how} this time, so that no other process can go on with its episode; play "
        "whole episodes (--fragment-steps 0), of fewer steps (--max-episode-steps N)",
        slot,
    )
