"""An update that would leave NaN or infinity behind does not happen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from flame_rl.errors import RunError

_REMEDY = (
    "The weights are as they were before this update. Likely causes: a learning rate that is too "
    "large (try a tenth), or rewards or observations of enormous size (scale them in the "
    "environment)"
)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


@contextmanager
def refused_unless_finite(learner: Stateful, scalars: dict[str, float]) -> Iterator[None]:
    """Around a step of the optimiser: afterwards all state is finite, or as it was before.

    Args:
        learner: whose state the block changes.
        scalars: by name, what the step is made from.

    Raises:
        RunError: a scalar, or part of the state after the step, is NaN or infinite.
    """
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise RunError(f"the update was refused: the {name} is {value}. {_REMEDY}")
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    yield
    for name, tensor in learner.state_dict().items():
        if not torch.isfinite(tensor).all():
            learner.load_state_dict(before)
            raise RunError(f"the update was refused: {name} became NaN or infinite. {_REMEDY}")
