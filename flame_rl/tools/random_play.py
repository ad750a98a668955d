"""Play episodes of random actions, and count what they are like."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.memory import own_bytes
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.actor.simulators.repeatable import SEED, random_actions
from flame_rl.wire.inputs import observation_inputs, observation_parts
from flame_rl.wire.messages import EnvironmentSpec
from flame_rl.wire.steps import step_columns

# Numbers beyond it, and returns, are far from the 1 that networks are made for.
FAR = 100.0
_EPISODES = 100
# Of the episode whose actions are at their bounds.
_STEPS = 100


@dataclass(frozen=True)
class Amounts:
    """The spread of a number: how often it came, and its mean, standard deviation and range."""

    count: int
    mean: float
    std: float
    least: float
    most: float


@dataclass(frozen=True)
class Played:
    """What episodes of random actions were like; None where nothing was played.

    Attributes:
        reset_seconds: mean of a reset.
        steps_per_second: of one environment alone.
        finished: episodes, of each of several agents, that ended by themselves or by a time limit.
        truncated: those of them that were cut.
        returns, lengths: of finished episodes; None if there are none.
        longest: env steps of the longest episode, finished or not.
        rewards: of all steps; of a vector, its sum.
        paid: the share of steps whose reward is not 0.
        allowed: the mean share of choices that the masks allow; 1 without masks.
        observed: the least and the greatest number that was observed.
        far: names and greatest absolute values of numbers beyond 100, the farthest first.
        numbers: how many numbers an observation has.
        constant: how many of them never changed.
        grown_bytes: by how much the process has grown from the first episode's end to the last's.
    """

    reset_seconds: float
    steps_per_second: float
    finished: int
    truncated: int
    returns: Amounts | None
    lengths: Amounts | None
    longest: int
    rewards: Amounts
    paid: float
    allowed: float
    observed: tuple[float, float]
    far: tuple[tuple[str, float], ...]
    numbers: int
    constant: int
    grown_bytes: int


def random_play(
    simulator: EnvironmentsSimulator, spec: EnvironmentSpec, seconds: float
) -> dict[str, Any]:
    """`Played` as JSON data."""
    (actions,) = (column for column in step_columns(spec) if column.name == "actions")
    agents, generator = simulator.agents, np.random.default_rng(SEED)
    finished: list[tuple[float, int, bool]] = []
    resets: list[float] = []
    rewards: list[np.ndarray] = []
    allowed: list[float] = []
    seen = _Seen(spec.observation_dim)
    steps, longest, stepping, first_bytes = 0, 0, 0.0, None
    limit = time.monotonic() + seconds
    for episode in range(_EPISODES):
        if episode and time.monotonic() > limit:
            break
        running, began = np.arange(agents), time.monotonic()
        simulator.reset(running, np.full(agents, SEED + episode))
        resets.append(time.monotonic() - began)
        _refuse_infinite(simulator, running, "reset")
        seen.add(simulator.observations[running])
        returns, length = np.zeros(agents), 0
        while len(running) and (not length or time.monotonic() < limit):
            chosen = random_actions(simulator, actions, generator, slice(0, agents))
            allowed.append(_allowed(simulator, spec, running))
            began = time.monotonic()
            simulator.step(chosen, running)
            stepping += time.monotonic() - began
            length += 1
            _refuse_infinite(simulator, running, f"step {length}")
            earned = simulator.rewards[running].reshape(len(running), -1).sum(axis=1)
            rewards.append(earned)
            returns[running] += earned
            seen.add(simulator.observations[running])
            for slot in running[(simulator.terminated | simulator.truncated)[running]]:
                cut = bool(simulator.truncated[slot] and not simulator.terminated[slot])
                finished.append((float(returns[slot]), length, cut))
            running = running[~(simulator.terminated | simulator.truncated)[running]]
        steps, longest = steps + length, max(longest, length)
        first_bytes = own_bytes() if first_bytes is None else first_bytes
    paid = np.concatenate(rewards)
    return {
        "reset_seconds": float(np.mean(resets)),
        "steps_per_second": steps / max(stepping, 1e-9),
        "finished": len(finished),
        "truncated": sum(cut for *_, cut in finished),
        "returns": _amounts([each for each, *_ in finished]),
        "lengths": _amounts([length for _, length, _ in finished]),
        "longest": longest,
        "rewards": _amounts(paid),
        "paid": float((paid != 0).mean()),
        "allowed": float(np.mean(allowed)),
        "grown_bytes": own_bytes() - first_bytes,
        **seen.data(spec),
    }


def _allowed(simulator: EnvironmentsSimulator, spec: EnvironmentSpec, running: np.ndarray) -> float:
    """The share of choices that the masks of these slots allow."""
    if not simulator.masks.read:
        return 1.0
    masks = np.unpackbits(simulator.action_masks[running], axis=1, count=sum(spec.choices))
    return float(masks.mean())


def _refuse_infinite(simulator: EnvironmentsSimulator, running: np.ndarray, when: str) -> None:
    """Raise SimulatorError for observations and rewards that are not finite."""
    for name, values in (("observation", simulator.observations), ("reward", simulator.rewards)):
        if not np.isfinite(values[running]).all():
            raise SimulatorError("invalid", f"{name}: NaN or infinity, of {when}")


class _Seen:
    """The range of each number that was observed."""

    def __init__(self, width: int) -> None:
        self._least, self._most = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, observations: np.ndarray) -> None:
        """Add observations, [n, D]."""
        np.minimum(self._least, observations.min(axis=0), out=self._least)
        np.maximum(self._most, observations.max(axis=0), out=self._most)

    def data(self, spec: EnvironmentSpec) -> dict[str, Any]:
        """The attributes of `Played` that say what was observed."""
        greatest = np.maximum(np.abs(self._least), np.abs(self._most))
        order = np.argsort(-greatest)
        # Bytes are scaled.
        scaled = np.zeros(spec.observation_dim, bool)
        for each in observation_inputs(spec.observation_space):
            scaled[each.start : each.stop] = each.space is not None
        beyond = [int(place) for place in order if greatest[place] > FAR and not scaled[place]]
        return {
            "observed": [float(self._least.min()), float(self._most.max())],
            "far": [[_name_of(spec, place), float(greatest[place])] for place in beyond[:1000]],
            "numbers": spec.observation_dim,
            "constant": int((self._least == self._most).sum()),
        }


def _name_of(spec: EnvironmentSpec, place: int) -> str:
    """A number of a flattened observation, as Python indexes it."""
    part = next(p for p in observation_parts(spec.observation_space) if place < p.stop)
    return f"observation{part.name}[{place - part.start}]"


def _amounts(values: Any) -> dict[str, Any] | None:
    if not len(values):
        return None
    array = np.asarray(values, np.float64)
    numbers = (array.mean(), array.std(), array.min(), array.max())
    return {"count": len(array)} | dict(
        zip(("mean", "std", "least", "most"), map(float, numbers), strict=True)
    )


def played_from_data(data: dict[str, Any]) -> Played:
    amounts = ("returns", "lengths", "rewards")
    made = {name: data[name] and Amounts(**data[name]) for name in amounts}
    far = tuple((name, value) for name, value in data["far"])
    return Played(**data | made | {"far": far, "observed": tuple(data["observed"])})


def play_at_bounds(simulator: EnvironmentsSimulator, spec: EnvironmentSpec) -> None:
    """Play an episode whose numbers are the least and the greatest that a policy's become."""
    (actions,) = (column for column in step_columns(spec) if column.name == "actions")
    if actions.choices:
        return
    agents, generator = simulator.agents, np.random.default_rng(SEED)
    running = np.arange(agents)
    simulator.reset(running, np.full(agents, SEED))
    for _ in range(_STEPS):
        if not len(running):
            return
        chosen = np.sign(random_actions(simulator, actions, generator, slice(0, agents)))
        simulator.step(chosen, running)
        running = running[~(simulator.terminated | simulator.truncated)[running]]
