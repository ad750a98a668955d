"""The squashed Gaussian policy of soft actor-critic as machine code; see
flame_rl/learner/off_policy/squashed.py, whose formulas these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from llvmlite import ir

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.elementwise import log1p, tanh
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index
from flame_rl.learner.kernels.layers import contiguous
from flame_rl.learner.off_policy.squashed import Backward
from flame_rl.nets.continuous import LOG_STD_RANGE


def compiled_squashed_gaussian(
    output: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Backward]:
    """See `squashed_gaussian`; of float32. Raises ValueError for shapes that do not fit."""
    rows, width = noise.shape
    forward, back = _functions(width)
    output, noise = contiguous(output, rows, 2 * width), contiguous(noise, rows, width)
    actions, log_probs = np.empty_like(noise), np.empty(rows, np.float32)
    forward(output, noise, actions, log_probs, rows)

    def backward(action_slopes: np.ndarray, log_prob_slopes: np.ndarray) -> np.ndarray:
        slopes = contiguous(action_slopes, rows, width), contiguous(log_prob_slopes, rows)
        result = np.empty_like(output)
        back(output, noise, actions, *slopes, result, rows)
        return result

    return actions, log_probs, backward


@engine.compiled_once
def _functions(width: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """Compile both ways for actions of A numbers: functions of output [rows, 2 A], noise [rows, A],
    actions [rows, A], log_probs [rows], rows; and of output, noise, actions, their slopes, those of
    the log-probabilities, the result like the output, rows."""
    module = ir.Module()
    names = f"squashed{width}_forward", f"squashed{width}_backward"
    arrays = (
        ("output", "noise", "actions", "log_probs"),
        ("output", "noise", "actions", "action_slopes", "log_prob_slopes", "result"),
    )
    functions = []
    for name, own, write in zip(names, arrays, (_write_forward, _write_backward), strict=True):
        kinds = dict.fromkeys(own, "array") | {"rows": "integer"}
        f = Function(module, name, **kinds)
        write(f, width, *f.arguments)
        f.end(for_python=True)
        functions.append((name, [*kinds.values()]))
    engine.load(module)
    forward, backward = (engine.function(*each) for each in functions)
    return forward, backward


class _Numbers:
    """Some numbers of an action, a vector of them.

    Attributes:
        place: of the first one in an array of actions.
        mask: their lanes.
        log_std, raw: the logarithm of the standard deviation, and before it was clipped.
        shift: std * noise.
        u: before the tanh.
        decay: exp(-2 |u|).
    """

    def __init__(
        self, f: Function, width: int, start: int, row: Index, output: Array, noise: Array
    ) -> None:
        self.place, self.mask = row * width + start, f.first_lanes(width - start)
        mean = output + (row * (2 * width) + start)
        self.noise = (noise + self.place).load(self.mask)
        self.raw = (mean + width).load(self.mask)
        self.log_std = self.raw.within(*LOG_STD_RANGE)
        self.shift = self.log_std.exp() * self.noise
        self.u = mean.load(self.mask) + self.shift
        self.decay = (self.u.absolute() * -2.0).exp()


def _numbers(
    f: Function, width: int, row: Index, output: Array, noise: Array
) -> Iterator[_Numbers]:
    for start in range(0, width, LANES):
        yield _Numbers(f, width, start, row, output, noise)


def _write_forward(
    f: Function,
    width: int,
    output: Array,
    noise: Array,
    actions: Array,
    log_probs: Array,
    rows: Index,
) -> None:
    one = f.first_lanes(1)
    with f.loop(rows) as row:
        total = f.vector(0.0)
        for n in _numbers(f, width, row, output, noise):
            (actions + n.place).store(tanh(n.u), n.mask)
            log_slope = 2.0 * (math.log(2) - n.u.absolute() - log1p(n.decay))
            constant = 0.5 * math.log(2 * math.pi)
            terms = 0.5 * n.noise * n.noise + n.log_std + constant + log_slope
            total = total + terms.only(n.mask)
        (log_probs + row).store(-total.sum(), one)


def _write_backward(
    f: Function,
    width: int,
    output: Array,
    noise: Array,
    actions: Array,
    action_slopes: Array,
    log_prob_slopes: Array,
    result: Array,
    rows: Index,
) -> None:
    with f.loop(rows) as row:
        of_log_prob = (log_prob_slopes + row).number()
        for n in _numbers(f, width, row, output, noise):
            # 1 - tanh(u)^2, which for large u would be a difference of equal numbers.
            derivative = 4.0 * n.decay / ((1.0 + n.decay) * (1.0 + n.decay))
            of_action = (action_slopes + n.place).load(n.mask)
            action = (actions + n.place).load(n.mask)
            of_u = of_action * derivative + 2.0 * of_log_prob * action
            of_log_std = of_u * n.shift - of_log_prob
            least, greatest = LOG_STD_RANGE
            of_log_std = of_log_std.unless(n.raw < least, 0.0).unless(n.raw > greatest, 0.0)
            place = result + n.place + row * width
            place.store(of_u, n.mask)
            (place + width).store(of_log_std, n.mask)
