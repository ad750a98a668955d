"""The masks of allowed actions that environments return, checked and written into the rows of a
simulator."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.masks import (
    ACTION_MASK,
    OBSERVATION,
    allowed_choices,
    allows_something,
    first_choices,
)
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.wire.masks import pack_masks
from flame_rl.wire.messages import MaskSource
from flame_rl.wire.spaces import choices_of


class Masks:
    """Reads the masks of a simulator's environments into `Simulator.action_masks`.

    Attributes:
        found_in: where they are; None until the first reset has shown whether there are any.
    """

    def __init__(self, space: gymnasium.Space, found_in: MaskSource | None, rows: int) -> None:
        """
        Args:
            space: of the actions.
            found_in: where the masks are, if that is known before the first reset.
            rows: those of the simulator; in each all is allowed.
        """
        self.found_in = found_in
        self._space = space
        self._first = first_choices(space)
        count = sum(choices_of(space))
        # More than 1 where an environment returned something else than 0 and 1.
        self._allowed = np.ones((rows, count), np.uint8)
        # The shape of most masks, which need no other check.
        self._usual = (count,) if isinstance(space, spaces.Discrete) else None

    @property
    def read(self) -> bool:
        """Whether there are masks."""
        return self.found_in in ("info", "observation")

    def of(
        self, observation: object, info: object, slot: int, source: str
    ) -> tuple[object, object]:
        """What `source`, "reset" or "step", returned, as an observation without its mask and what
        has the mask."""
        if self.found_in is None:
            found = isinstance(info, Mapping) and ACTION_MASK in info
            self.found_in = "info" if found else "none"
        if self.found_in != "observation":
            return observation, info
        if not isinstance(observation, Mapping) or OBSERVATION not in observation:
            raise SimulatorError(
                "invalid",
                f"observation: {source} returned {observation!r:.80} where a dictionary of "
                f"{OBSERVATION!r} and {ACTION_MASK!r} is expected",
                slot,
            )
        return observation[OBSERVATION], observation

    def take(self, slot: int, holder: object, source: str, ended: bool = False) -> None:
        """Read the mask in what `of` returned; at an episode's end there may be none."""
        mask = holder.get(ACTION_MASK) if isinstance(holder, Mapping) else None
        allowed = self._allowed[slot]
        if type(mask) is np.ndarray and mask.dtype == np.int8 and mask.shape == self._usual:
            allowed[:] = mask
        elif mask is None and ended:
            allowed[:] = 1
        elif mask is None:
            raise SimulatorError(
                "invalid",
                f"{ACTION_MASK}: {source} returned none in its {self.found_in}, where the first "
                "reset had one; give one at every reset and step, or leave them out "
                "(--no-action-mask)",
                slot,
            )
        else:
            try:
                allowed[:] = allowed_choices(self._space, mask)
            except ValueError as error:
                text = f"{ACTION_MASK}: {source} returned {error}"
                raise SimulatorError("invalid", text, slot) from error

    def wait(self, slot: int) -> None:
        """It is another agent's turn: the first choice of each factor, which does nothing, is the
        only one."""
        self._allowed[slot] = 0
        self._allowed[slot, self._first] = 1

    def write(self, simulator: Simulator, slots: np.ndarray, source: str) -> None:
        """Write the masks of these slots, int [n], after checking that each factor has a choice; a
        mask of no choice at an episode's end allows all, because nothing is chosen there."""
        rows = as_rows(slots)
        allowed = self._allowed[rows]
        wrong = ~allows_something(allowed, self._first) | (allowed.max(axis=1) > 1)
        for slot in slots[wrong].tolist():
            mask = self._allowed[slot]
            ended = simulator.terminated[slot] or simulator.truncated[slot]
            if mask.max() <= 1 and ended and source == "step":
                mask[:] = 1
                continue
            reason = (
                "which allows nothing: allow one choice at least, which may do nothing, or end the "
                "episode"
            )
            if mask.max() > 1:
                reason = "not 0 and 1"
            text = f"{ACTION_MASK}: {source} returned {mask.tolist()!s:.80}, {reason}"
            raise SimulatorError("invalid", text, slot)
        simulator.action_masks[rows] = pack_masks(self._allowed[rows])
