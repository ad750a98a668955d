"""Simulators play several episodes side by side and write their state into arrays of all slots."""

import math
from collections.abc import Sequence

import numpy as np

from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.wire.masks import ACTION_MASKS, mask_bytes
from flame_rl.wire.messages import Column, Start


class Simulator:
    """Episodes side by side, each in a slot of its own. The arrays stay the same objects; their W
    rows are a multiple of `ROW_BLOCK`, of which those beyond the slots are not used."""

    def __init__(
        self,
        slots: int,
        observed: Sequence[Column],
        reward_parts: Sequence[str],
        reward_shape: tuple[int, ...] = (),
        outcomes: Sequence[str] = (),
        masked_choices: int = 0,
    ) -> None:
        """Make the arrays; all choices are allowed."""
        # The most episodes side by side, and how many agents play together, in neighbouring slots.
        self.slots, self.agents = slots, 1
        rows = -(-slots // ROW_BLOCK) * ROW_BLOCK
        self.observed = tuple(observed)  # the column of each input of an observation, in order
        ends = np.cumsum([math.prod(column.shape) for column in observed]).tolist()
        dtype = observed[0].dtype if len(observed) == 1 else "float32"
        # Each slot's current observation, flattened, and what it allows, as in wire/masks.py.
        self.observations = np.zeros((rows, ends[-1]), dtype)
        views = np.split(self.observations, ends[:-1], axis=1)
        self.action_masks = np.full((rows, mask_bytes(masked_choices)), 255, np.uint8)
        # Of each slot's last step; outcomes are 0 unless it ended the episode.
        self.rewards = np.zeros((rows, *reward_shape))
        self.reward_parts = np.zeros((rows, len(reward_parts)))
        self.outcomes = np.zeros((rows, len(outcomes)))
        self.terminated, self.truncated = np.zeros((2, rows), bool)
        # Where each slot was left in the middle of an episode, by slot; see actor/fragments.py.
        self.paused: dict[int, Start] = {}
        self.part_names, self.outcome_names = reward_parts, outcomes
        self.recorded = {c.name: view for c, view in zip(observed, views, strict=True)} | {
            "rewards": self.rewards,
            "reward_parts": self.reward_parts,
            "outcomes": self.outcomes,
            ACTION_MASKS: self.action_masks,
        }

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        """Begin an episode in each of `slots`, int [n], ascending, determined by its seed, int [n],
        one for all agents of an environment. As `step`, raises SimulatorError."""
        raise NotImplementedError

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        """Take one step in each of `slots`, int [n], ascending, all with a running episode; the
        other slots stay as they are. Actions have a row for each slot up to at least the highest:
        float32 [rows, A], or int32 [rows] or [rows, F], as in `environments.converting`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all environments. Raises SimulatorError of kind "environment" if one raised."""


def as_rows(slots: np.ndarray) -> slice | np.ndarray:
    """An index of the rows of `slots`, int [n], ascending; a slice if they are consecutive."""
    if len(slots) == 0:
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    return slice(first, last + 1) if last - first + 1 == len(slots) else slots
