"""The functions that all networks share, compiled once in a process."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from flame_rl.learner.kernels import elementwise, engine, normalization, products

_ARRAY, _INTEGER, _NUMBER = "array", "integer", "number"


@engine.compiled_once
def library() -> dict[str, Callable[..., None]]:
    """Compile them; returns those that Python calls. For their arguments see where they are
    written."""
    module = ir.Module()
    products.write_product(module)
    products.write_transpose(module)
    normalization.write_normalize(module)
    normalization.write_norm_value(module)
    normalization.write_norm_gradient(module)
    normalization.write_norm_slope(module)
    for name in elementwise.ACTIVATIONS:
        elementwise.write_activation(module, name)
    elementwise.write_squared_norm(module)
    elementwise.write_add(module)
    elementwise.write_adam(module)
    elementwise.write_follow(module)
    engine.load(module)
    of_activations = {
        name: engine.function(name, [_ARRAY, _ARRAY, _INTEGER])
        for activation in elementwise.ACTIVATIONS
        for name in (f"{activation}_value", f"{activation}_slope")
    }
    return of_activations | {
        "squared_norm": engine.function("squared_norm", [_ARRAY, _ARRAY, _INTEGER]),
        "adam": engine.function("adam", [_ARRAY] * 4 + [_NUMBER] * 3 + [_INTEGER]),
        "normalize": engine.function("normalize", [_ARRAY] * 4 + [_INTEGER] * 2),
        "follow": engine.function("follow", [_ARRAY, _ARRAY, _NUMBER, _INTEGER]),
    }
