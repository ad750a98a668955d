"""The compiled library of core.c, which hatch_build.py makes when the package is installed, and its
structures as ctypes has them."""

from __future__ import annotations

import platform
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_double,
    c_float,
    c_int64,
    c_void_p,
)
from functools import cache
from pathlib import Path

import numpy as np

# For each processor, names of libraries and what /proc/cpuinfo says of those that can run them; the
# best ones first. hatch_build.py makes these.
TARGETS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {
        "x86_64_v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
        "x86_64_v3": frozenset({"avx2", "fma", "bmi2"}),
        "x86_64_v2": frozenset(),
    },
    "aarch64": {"generic": frozenset()},
}
# The columns of samples, in the order of core.c, and their types.
COLUMNS = {
    "inputs": np.float32,
    "actions": np.float32,
    "action_masks": np.uint8,
    "advantages": np.float32,
    "log_probs": np.float32,
    "weights": np.float32,
    "targets": np.float32,
}
# The numbers of a loss, in the order of core.c.
NUMBERS = "loss", "entropy", "kl"


class Layer(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("inputs", "outputs", "weight", "bias")),
        *((name, c_int64) for name in ("norm_weight", "norm_bias", "activation")),
        ("epsilon", c_double),
    )


class Head(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("kind", "log_std", "factors")),
        *((name, c_void_p) for name in ("choices", "scale")),
    )


class Network(Structure):
    _fields_ = (("count", c_int64), ("layers", POINTER(Layer)), ("head", Head))


class Loss(Structure):
    _fields_ = (("kind", c_int64), ("clip_range", c_float), ("entropy_coefficient", c_float))


class Samples(Structure):
    _fields_ = (("data", c_void_p * len(COLUMNS)), ("bytes", c_int64 * len(COLUMNS)))


class Optimizer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("parameters", "gradient", "first", "second")),
        ("size", c_int64),
        *((name, c_double) for name in ("max_grad_norm", "max_kl")),
    )


class Epoch(Structure):
    _fields_ = (
        ("samples", Samples),
        *((name, c_void_p) for name in ("rows", "order")),
        *((name, c_int64) for name in ("steps", "minibatches", "slice_rows")),
    )


_P, _N, _R = c_void_p, c_int64, c_double
_ARGUMENTS = {
    "workspace_size": (_P, _N),
    "forward": (_P, _P, _P, _N, _N, _P, _P, _P),
    "backward": (_P, _P, _P, _N, _P, _P, _P, _P, _N, _P),
    "differentiate": (_P, _P, _P, _P, _N, _P, _P, _N, _P),
    "epoch": (_P, _P, _P, _P, _N, _N, _P, _P, _P, _P),
    "norm": (_P, _N),
    "adam": (_P, _P, _P, _P, _R, _R, _R, _N),
    "follow": (_P, _P, _R, _N),
    "normalize": (_P, _P, _P, _P, _R, _N, _N),
}
_RESULTS = {"workspace_size": c_int64, "epoch": c_int64, "norm": c_double}


@cache
def library() -> CDLL | None:
    """The library for this processor; None where the package was installed without one. While a
    function of it runs, other threads run, too."""
    for name, needed in TARGETS.get(platform.machine(), {}).items():
        path = Path(__file__).with_name(f"core_{name}.so")
        if path.exists() and needed <= _features():
            loaded = CDLL(str(path))
            for function, arguments in _ARGUMENTS.items():
                getattr(loaded, function).argtypes = arguments
                getattr(loaded, function).restype = _RESULTS.get(function)
            return loaded
    return None


def _features() -> set[str]:
    """What the processor can do, in the words of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    flags = (line.partition(":")[2].split() for line in text.splitlines() if "flags" in line[:9])
    return set(next(flags, ()))
