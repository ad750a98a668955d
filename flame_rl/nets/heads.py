"""The heads of a network in NumPy: they turn its output into actions.
The log-probabilities that losses see are in flame_rl/modules/networks.py.

discrete.py and continuous.py have the heads of policies, a class a kind; kinds.py lists them.
"""

from typing import ClassVar, Literal

import numpy as np

from flame_rl.nets.layers import Shapes

NoiseKind = Literal["normal", "uniform"]
# What comes with B observations, such as masks: columns by name, [B, ...] each.
Columns = dict[str, np.ndarray]
NOTHING: Columns = {}


class HeadKind:
    """A policy's head, made from the width of the network's output and the head's arrays by name.

    An action must not depend on which other observations share the batch: the order in which the
    numbers of a row are added must not depend on the number of rows.

    Attributes:
        kind: its name in a `PolicySnapshot`.
        arrays, integers: shapes of the arrays of float32, and of int32.
        noise: the kind of random numbers that an action is sampled with: standard normal, or
            uniform in [0, 1).
        noise_width: how many random numbers an action takes.
        noise_carry: the share of a step's noise that is added to the next step's own random
            numbers; 0: the steps of an episode have independent noise.
        noise_repeat: the probability that a step has the noise of the step before, but for an
            episode's first step.
        dtype, shape: the type and shape of one action.
        choices: the number of choices of each of its factors; of real numbers, none.
    """

    kind: ClassVar[str]
    arrays: ClassVar[Shapes] = {}
    integers: ClassVar[Shapes] = {}
    noise: ClassVar[NoiseKind]
    dtype: ClassVar[str]
    noise_width: int
    noise_carry: float = 0.0
    noise_repeat: float = 0.0
    shape: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        """An action for each row of the output.

        Args:
            output: float64 [B, width].
            noise: float64 [B, noise_width].
            seen: what else comes with the B observations, by name, such as masks.
        """
        raise NotImplementedError

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        """The action without noise: the mean, or the choice that is likeliest or worth most."""
        raise NotImplementedError
