"""What a loss sees of a network's output, and the way back, as machine code; the same as by the
heads of flame_rl/nets/."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from llvmlite import ir

from flame_rl.learner.kernels.elementwise import log
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index, Vector
from flame_rl.nets.by_hand import ArrayPlace
from flame_rl.nets.continuous import GaussianHead
from flame_rl.nets.discrete import CategoricalHead
from flame_rl.nets.heads import RawOutput, ValueOutput

# Below every logit.
_LOWEST = -3e38
# With more choices, whose vectors are all written out, it would take long to compile.
_MOST_CHOICES = 256


class Head(Protocol):
    """Writes a head's part of a function.

    Attributes:
        seen: how many numbers a loss sees of each row.
        columns: the columns of the samples that the head needs, and the width of each.
    """

    seen: int
    columns: dict[str, int]

    def write_forward(self, given: Given, seen: Sequence[Array]) -> None:
        """Write what a loss sees, [rows] each."""
        ...

    def write_backward(
        self, given: Given, slopes: Sequence[Array], output_slopes: Array, gradient: Array
    ) -> None:
        """Write the slopes for the output, like it, and the gradients of the head's own parameters
        to their places, given the slopes for what a loss sees, [rows] each."""
        ...


@dataclass(frozen=True)
class Given:
    """What a head's part of a function has.

    Attributes:
        f: the function that is being written.
        output: of the network, [rows, width].
        own: the head's array.
        columns: those of `Head.columns`, [rows, their width].
        rows: their number.
    """

    f: Function
    output: Array
    own: Array
    columns: tuple[Array, ...]
    rows: Index


@dataclass(frozen=True)
class Value:
    """The only output times a scale, `own`."""

    seen = 1
    columns: ClassVar[dict[str, int]] = {}

    def write_forward(self, given: Given, seen: Sequence[Array]) -> None:
        self._scale(given, given.output, seen[0])

    def write_backward(
        self, given: Given, slopes: Sequence[Array], output_slopes: Array, gradient: Array
    ) -> None:
        self._scale(given, slopes[0], output_slopes)

    def _scale(self, given: Given, numbers: Array, result: Array) -> None:
        scale = given.own.number()
        for i, mask in given.f.vectors(given.rows):
            (result + i).store((numbers + i).load(mask) * scale, mask)


@dataclass(frozen=True)
class Gaussian:
    """A loss sees log-probabilities of actions, and entropies.

    Attributes:
        width: A, of an action; `own` is the logarithms of the standard deviations, [A].
        place: where their gradient begins.
    """

    width: int
    place: int

    seen = 2

    @property
    def columns(self) -> dict[str, int]:
        return {"actions": self.width}

    def write_forward(self, given: Given, seen: Sequence[Array]) -> None:
        f, own = given.f, _GaussianNumbers(self.width, given)
        one = f.first_lanes(1)
        with f.loop(given.rows) as row:
            squares = f.vector(0.0)
            for z in own.z(row):
                squares = z.times_plus(z, squares)
            (seen[0] + row).store(squares.sum() * -0.5 - own.constant, one)
        for i, mask in f.vectors(given.rows):
            (seen[1] + i).store(own.constant + 0.5 * self.width, mask)

    def write_backward(
        self, given: Given, slopes: Sequence[Array], output_slopes: Array, gradient: Array
    ) -> None:
        # With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, and
        # d entropy / d log std = 1.
        f, own = given.f, _GaussianNumbers(self.width, given)
        of_log_probs, of_entropies = slopes
        zero = f.vector(0.0)
        with f.loop_with(given.rows, [zero], LANES, whole=False) as (i, (rest,), following):
            mask = f.first_lanes(given.rows - i)
            both = (of_entropies + i).load(mask) - (of_log_probs + i).load(mask)
            following.append(rest + both)
        with f.loop_with(given.rows, [zero] * len(own.masks)) as (row, sums, following):
            slope = (of_log_probs + row).number()
            for number, z in enumerate(own.z(row)):
                at = output_slopes + (row * self.width + own.starts[number])
                at.store(slope * z * own.inverses[number], own.masks[number])
                following.append((slope * z).times_plus(z, sums[number]))
        for start, mask, own_sum in zip(own.starts, own.masks, sums, strict=True):
            (gradient + (self.place + start)).store(own_sum + rest.sum(), mask)


class _GaussianNumbers:
    """What forward and backward of a Gaussian need.

    Attributes:
        masks: of the vectors that hold the numbers of an action.
        starts: the first number in each of these vectors.
        inverses: 1 / std, in vectors like these.
        constant: what a log-probability has beside its squares, with its sign changed.
    """

    def __init__(self, width: int, given: Given) -> None:
        f = given.f
        self._width, self._given = width, given
        self.starts = range(0, width, LANES)
        self.masks: list[ir.Value] = [f.first_lanes(width - start) for start in self.starts]
        log_stds = [
            (given.own + start).load(mask)
            for start, mask in zip(self.starts, self.masks, strict=True)
        ]
        self.inverses = [(-each).exp() for each in log_stds]
        self.constant = _sum(f, log_stds) + 0.5 * math.log(2 * math.pi) * width

    def z(self, row: Index) -> list[Vector]:
        """(action - mean) / std of a row."""
        (actions,), mean = self._given.columns, self._given.output
        vectors = []
        for start, mask, inverse in zip(self.starts, self.masks, self.inverses, strict=True):
            at = row * self._width + start
            vectors.append(((actions + at).load(mask) - (mean + at).load(mask)) * inverse)
        return vectors


@dataclass(frozen=True)
class Categorical:
    """A loss sees log-probabilities of actions, and entropies.

    Attributes:
        width: A, the number of choices. There is no array of its own.
    """

    width: int

    seen = 2
    columns: ClassVar[dict[str, int]] = {"actions": 1}

    def write_forward(self, given: Given, seen: Sequence[Array]) -> None:
        one = given.f.first_lanes(1)
        with given.f.loop(given.rows) as row:
            own = _CategoricalNumbers(self.width, given, row)
            (seen[0] + row).store(own.log_prob, one)
            (seen[1] + row).store(own.entropy, one)

    def write_backward(
        self, given: Given, slopes: Sequence[Array], output_slopes: Array, gradient: Array
    ) -> None:
        # With p = softmax(x): d log p_a / d x_j = [a = j] - p_j, and with the entropy H,
        # d H / d x_j = -p_j (log p_j + H).
        with given.f.loop(given.rows) as row:
            own = _CategoricalNumbers(self.width, given, row)
            of_log_prob, of_entropy = ((each + row).number() for each in slopes)
            for number, (log_p, p) in enumerate(zip(own.log_p, own.p, strict=True)):
                slope = -p * (of_log_prob + of_entropy * (log_p + own.entropy))
                slope = slope + of_log_prob.only(own.chosen[number])
                at = output_slopes + (row * self.width + own.starts[number])
                at.store(slope, own.masks[number])


class _CategoricalNumbers:
    """What forward and backward of a categorical distribution need, of one row.

    Attributes:
        starts, masks: of the vectors that hold the choices.
        log_p, p: logarithms of the probabilities, and these, in such vectors.
        chosen: masks of the choice that was taken.
        log_prob, entropy: in all lanes.
    """

    def __init__(self, width: int, given: Given, row: Index) -> None:
        f, (actions,) = given.f, given.columns
        self.starts = range(0, width, LANES)
        self.masks: list[ir.Value] = [f.first_lanes(width - start) for start in self.starts]
        logits = [
            (given.output + (row * width + start)).load(mask)
            for start, mask in zip(self.starts, self.masks, strict=True)
        ]
        greatest = f.vector(_LOWEST)
        for each, mask in zip(logits, self.masks, strict=True):
            own = f.vector(_LOWEST).unless(mask, each)
            greatest = greatest.unless(greatest < own, own)
        greatest = greatest.greatest()
        shifted = [each - greatest for each in logits]
        powers = [each.exp().only(m) for each, m in zip(shifted, self.masks, strict=True)]
        total = _sum(f, powers)
        log_total = log(total)
        self.log_p = [each - log_total for each in shifted]
        self.p = [each / total for each in powers]
        self.entropy = -_sum(f, [p * own for p, own in zip(self.p, self.log_p, strict=True)])
        action = (actions + row).number()
        self.chosen = [f.from_number(start).equals(action) for start in self.starts]
        taken = [own.only(mask) for own, mask in zip(self.log_p, self.chosen, strict=True)]
        self.log_prob = _sum(f, taken)


def _sum(f: Function, vectors: Sequence[Vector]) -> Vector:
    """Of all lanes, in all lanes."""
    total = f.vector(0.0)
    for each in vectors:
        total = total + each
    return total.sum()


def _gaussian(output: GaussianHead, places: tuple[ArrayPlace, ...]) -> tuple[Head, np.ndarray]:
    (place,) = places
    return Gaussian(len(output.log_std), place.start // 4), output.log_std


def has_machine_code(output: RawOutput) -> bool:
    """Whether there is a head here for a network's output."""
    few = type(output) is not CategoricalHead or output.width <= _MOST_CHOICES
    return type(output) in HEADS and few


# For the heads of flame_rl/nets/: the one here, and its array.
HEADS: dict[
    type[RawOutput], Callable[[RawOutput, tuple[ArrayPlace, ...]], tuple[Head, np.ndarray]]
] = {
    GaussianHead: _gaussian,
    CategoricalHead: lambda output, places: (Categorical(output.width), np.zeros(1, np.float32)),
    ValueOutput: lambda output, places: (Value(), output.scale),
}
