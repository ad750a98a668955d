"""Layer normalisation (Ba et al. 2016, "Layer Normalization", eq. 4) and its derivative, on rows
that are padded to whole vectors with zeros; and the normalisation of observations."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from flame_rl.learner.kernels.emit import LANES, Function, Index, Vector
from flame_rl.nets.layers import OBSERVATION_CLIP


def write_normalize(module: ir.Module) -> None:
    """y = (x - mean) / std within `OBSERVATION_CLIP`, for x and y [rows, width]."""
    arrays = dict.fromkeys(("y", "x", "mean", "std"), "array")
    f = Function(module, "normalize", **arrays, rows="integer", width="integer")
    y, x, mean, std, rows, width = f.arguments
    with f.loop(rows) as row:
        own, result = x + row * width, y + row * width
        for i, mask in f.vectors(width):
            normalized = ((own + i).load(mask) - (mean + i).load(mask)) / (std + i).load(mask)
            (result + i).store(normalized.within(-OBSERVATION_CLIP, OBSERVATION_CLIP), mask)
    f.end(for_python=True)


def write_norm_value(module: ir.Module) -> None:
    """x becomes normalised in place, y = weight * x + bias; `inverse`, [rows, LANES], are the
    factors of the rows."""
    f = Function(
        module,
        "norm_value",
        **dict.fromkeys(("y", "x", "inverse", "weight", "bias", "epsilon"), "array"),
        **dict.fromkeys(("rows", "width"), "integer"),
    )
    y, x, inverse, weight, bias, epsilon, rows, width = f.arguments
    across = f.padded(width)
    with f.loop(rows) as row:
        own, result = x + row * across, y + row * across
        mean = _mean(f, width, lambda i: (own + i).load())
        with f.loop(width, LANES, whole=False) as i:
            centred = (own + i).load() - mean
            (own + i).store(centred.only(f.first_lanes(width - i)))
        variance = _mean(f, width, lambda i: (own + i).load() * (own + i).load())
        factor = 1.0 / (variance + epsilon.number()).sqrt()
        (inverse + row * LANES).store(factor)
        with f.loop(width, LANES, whole=False) as i:
            mask = f.first_lanes(width - i)
            normalized = (own + i).load() * factor
            (own + i).store(normalized)
            weighted = normalized.times_plus((weight + i).load(mask), (bias + i).load(mask))
            (result + i).store(weighted)
    f.end()


def write_norm_gradient(module: ir.Module) -> None:
    """The gradient of the weight, given dL/dy and the normalised x."""
    f = Function(
        module,
        "norm_gradient",
        **dict.fromkeys(("gradient", "slope", "x"), "array"),
        **dict.fromkeys(("rows", "width"), "integer"),
    )
    gradient, slope, x, rows, width = f.arguments
    across = f.padded(width)
    with f.loop(width, LANES, whole=False) as i:
        with f.loop_with(rows, [f.vector(0.0)]) as (row, (total,), results):
            place = row * across + i
            results.append((slope + place).load().times_plus((x + place).load(), total))
        (gradient + i).store(total, f.first_lanes(width - i))
    f.end()


def write_norm_slope(module: ir.Module) -> None:
    """dL/dy becomes dL/dx in place, given what `norm_value` left."""
    f = Function(
        module,
        "norm_slope",
        **dict.fromkeys(("slope", "x", "inverse", "weight"), "array"),
        **dict.fromkeys(("rows", "width"), "integer"),
    )
    slope, x, inverse, weight, rows, width = f.arguments
    across = f.padded(width)
    with f.loop(rows) as row:
        own, normalized = slope + row * across, x + row * across
        with f.loop(width, LANES, whole=False) as i:
            (own + i).store((own + i).load() * (weight + i).load(f.first_lanes(width - i)))
        # Shifting or stretching x changes nothing, so that the slope has no such component.
        shift = _mean(f, width, lambda i: (own + i).load())
        stretch = _mean(f, width, lambda i: (own + i).load() * (normalized + i).load())
        factor = (inverse + row * LANES).load()
        with f.loop(width, LANES, whole=False) as i:
            rest = (own + i).load() - (normalized + i).load() * stretch - shift
            (own + i).store((rest * factor).only(f.first_lanes(width - i)))
    f.end()


def _mean(f: Function, width: Index, numbers: Callable[[Index], Vector]) -> Vector:
    """The mean of a row's numbers, given those of a vector; padding is 0."""
    zero = [f.vector(0.0)]
    with f.loop_with(width, zero, LANES, whole=False) as (i, (total,), results):
        results.append(total + numbers(i))
    return total.sum() / width.number()
