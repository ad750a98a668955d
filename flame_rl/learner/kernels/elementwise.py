"""Activations with their derivatives, norms, and Adam's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from flame_rl.learner.kernels.emit import LANES, Array, Function, Vector
from flame_rl.learner.training.adam import BETA1, BETA2, VANISHED

# tanh(x) / x as a quotient of polynomials in x^2, lowest power first: the best ones of these
# degrees up to |x| = 8, where tanh is 1 in float32, by their relative error, 6e-9.
_TANH_END = 8.0
_TANH_ABOVE = 0.9999999936, 0.1344450755, 0.003571609398, 2.189485053e-05, 1.523068405e-08
_TANH_BELOW = 1.0, 0.4677783487, 0.02616448616, 0.0003411310666, 8.52255442e-07

# 2 artanh(s) / s as a polynomial in s^2, lowest power first, for s from 0 to 1/3: within 5e-9,
# relatively.
_LOG1P = 2.000000008, 0.6666632041, 0.4002465133, 0.279643447, 0.2816145376


@dataclass(frozen=True)
class Elementwise:
    """A function of single numbers, y = f(x).

    Attributes:
        value: y, given x.
        slope: dL/dx, given dL/dy and what is kept: y, or x with `keeps_input`.
    """

    value: Callable[[Vector], Vector]
    slope: Callable[[Vector, Vector], Vector]
    keeps_input: bool = False


def tanh(x: Vector) -> Vector:
    """Within 4e-7."""
    x = x.within(-_TANH_END, _TANH_END)
    square = x * x
    quotient = x * square.polynomial(_TANH_ABOVE) / square.polynomial(_TANH_BELOW)
    return quotient.within(-1.0, 1.0)


def log1p(x: Vector) -> Vector:
    """log(1 + x) for x from 0 to 1, within 2e-7 relatively: 2 artanh(s) with s = x / (2 + x)."""
    s = x / (2.0 + x)
    return s * (s * s).polynomial(_LOG1P)


def log(x: Vector) -> Vector:
    """Of numbers from 1 on."""
    power, factor = x.power_and_factor()
    # What is not finite becomes NaN.
    return power.times_plus(math.log(2), log1p(factor - 1.0)) + (x - x)


def _sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + (-x).exp())


def _silu_slope(slope: Vector, x: Vector) -> Vector:
    sigmoid = _sigmoid(x)
    return slope * sigmoid * (1.0 + x * (1.0 - sigmoid))


# By the names of the layers' kinds.
ACTIVATIONS = {
    "tanh": Elementwise(tanh, lambda slope, y: slope * (1.0 - y * y)),
    # NaN stays NaN.
    "relu": Elementwise(
        lambda x: x.unless(x < 0.0, 0.0), lambda slope, y: slope.unless(y <= 0.0, 0.0)
    ),
    "silu": Elementwise(lambda x: x * _sigmoid(x), _silu_slope, keeps_input=True),
}


def write_activation(module: ir.Module, name: str) -> None:
    """y = f(x), where y may be x, and in place slope = dL/dx, given what is kept."""
    activation = ACTIVATIONS[name]
    f = Function(module, f"{name}_value", y="shared", x="shared", count="integer")
    y, x, count = f.arguments
    for i, mask in f.vectors(count):
        (y + i).store(activation.value((x + i).load(mask)), mask)
    f.end(for_python=True)
    f = Function(module, f"{name}_slope", slope="array", kept="array", count="integer")
    slope, kept, count = f.arguments
    for i, mask in f.vectors(count):
        before = activation.slope((slope + i).load(mask), (kept + i).load(mask))
        (slope + i).store(before, mask)
    f.end(for_python=True)


def write_squared_norm(module: ir.Module) -> ir.Function:
    """The sum of the squares, in LANES shares: [count] -> [LANES]."""
    f = Function(module, "squared_norm", result="array", x="array", count="integer")
    result, x, count = f.arguments
    several = 8
    with f.loop_with(count, [f.vector(0.0)] * several, step=several * LANES) as (i, sums, results):
        for number, total in enumerate(sums):
            vector = (x + (i + number * LANES)).load()
            results.append(vector.times_plus(vector, total))
    done = count // (several * LANES) * (several * LANES)
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    with f.loop_with(count, sums, LANES, done, whole=False) as (i, (total,), results):
        vector = (x + i).load(f.first_lanes(count - i))
        results.append(vector.times_plus(vector, total))
    result.store(total)
    return f.end(for_python=True)


def write_add(module: ir.Module) -> ir.Function:
    """total += x."""
    f = Function(module, "add", total="array", x="array", count="integer")
    total, x, count = f.arguments
    for i, mask in f.vectors(count):
        (total + i).store((total + i).load(mask) + (x + i).load(mask), mask)
    return f.end()


def write_adam(module: ir.Module) -> ir.Function:
    """One step of Adam with the gradient times `scale`: first = beta1 first + g, second = beta2
    second + g^2, parameters -= rate first / (sqrt(second) + epsilon)."""
    f = Function(
        module,
        "adam",
        **dict.fromkeys(("parameters", "gradient", "first", "second"), "array"),
        **dict.fromkeys(("scale", "epsilon", "rate"), "number"),
        count="integer",
    )
    *arrays, scale, epsilon, rate, count = f.arguments

    def step(places: list[Array], mask: ir.Value | None = None) -> None:
        parameters, gradient, first, second = places
        g = gradient.load(mask) * scale
        first_sum = _vanish(first.load(mask) * BETA1 + g, VANISHED[0])
        second_sum = _vanish(second.load(mask) * BETA2 + g * g, VANISHED[1])
        change = first_sum / (second_sum.sqrt() + epsilon) * rate
        first.store(first_sum, mask)
        second.store(second_sum, mask)
        parameters.store(parameters.load(mask) - change, mask)

    for i, mask in f.vectors(count):
        step([array + i for array in arrays], mask)
    return f.end(for_python=True)


def write_follow(module: ir.Module) -> ir.Function:
    """parameters += tau (others - parameters)."""
    arrays = dict.fromkeys(("parameters", "others"), "array")
    f = Function(module, "follow", **arrays, tau="number", count="integer")
    parameters, others, tau, count = f.arguments
    for i, mask in f.vectors(count):
        own, other = (parameters + i).load(mask), (others + i).load(mask)
        (parameters + i).store(own + (other - own) * tau, mask)
    return f.end(for_python=True)


def _vanish(sums: Vector, least: float) -> Vector:
    return sums.unless(sums.absolute() < least, 0.0)
