"""The compiled library of core.c, which hatch_build.py makes when the package is installed, and its
structures as ctypes has them."""

from ctypes import CDLL, POINTER, Structure, byref, c_double, c_float, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np
import torch

from flame_rl.learner.compiled import targets

# The columns of samples, in the order of core.c.
COLUMNS = (
    *("inputs", "actions", "action_masks", "advantages", "log_probs", "weights", "kl_weights"),
    *("targets", "next_inputs", "discounts"),
)
# How many numbers a loss has for each sample.
NUMBERS = 3
# The kind of processor that has what torch says of this one.
_KINDS = {"AVX512": "x86_64_v4", "AVX2": "x86_64_v3"}


def _struct(name: str, **fields: type) -> type[Structure]:
    """A structure of core.c; where a name stands for several fields, blanks are as "__"."""
    pairs = [(each, kind) for names, kind in fields.items() for each in names.split("__")]
    return type(name, (Structure,), {"_fields_": pairs})


def address(array: np.ndarray | None) -> int | None:
    """Where an array begins, for a field of a structure."""
    return None if array is None else array.ctypes.data


class _Pointer:
    """An argument that is an array, a structure or None."""

    @classmethod
    def from_param(cls, value: np.ndarray | Structure | None) -> Any:
        return byref(value) if isinstance(value, Structure) else c_void_p(address(value))


_P, _N, _R = c_void_p, c_int64, c_double
_PLACES = "inputs__outputs__weight__bias__norm_weight__norm_bias__activation"
Layer = _struct("Layer", **{_PLACES: _N}, epsilon=_R)
Head = _struct("Head", kind__factors=_N, choices__scale=_P)
Network = _struct("Network", count=_N, layers=POINTER(Layer), head=Head)
Loss = _struct("Loss", kind=_N, clip_range__entropy_coefficient=c_float)
Samples = _struct("Samples", data=_P * len(COLUMNS), bytes=_N * len(COLUMNS))
_STATE, _LIMITS = "parameters__gradient__m__v__factors", "max_grad_norm__max_kl"
Optimizer = _struct("Optimizer", **{_STATE: _P}, size=_N, **{_LIMITS: _R})
Target = _struct("Target", parameters=_P, period__taken__doubled=_N, tau=_R)
_ARRAYS, _SIZES = (
    "rows__order__workspace__scratch__numbers__means",
    "steps__minibatch_count__slice_rows",
)
Epoch = _struct("Epoch", samples=Samples, **{_ARRAYS: _P}, **{_SIZES: _N})

# The types of each function's arguments, and of its result.
_A = _Pointer
_FUNCTIONS = {
    "workspace_size": ((_A, _N), _N),
    "forward": ((_A, _A, _A, _N, _A, _A, _A), None),
    "backward": ((_A, _A, _A, _N, _A, _A, _A, _A, _A), None),
    "add_gradient": ((_A, _A, _A, _A, _N, _A, _A, _A, _A), None),
    "epoch": ((_A, _A, _A, _A, _A, _N, _N), _N),
    "adam": ((_A, _A, _A, _A, _R, _R, _R, _N), None),
    "follow": ((_A, _A, _R, _N), None),
}


@cache
def library() -> CDLL | None:
    """The library for this processor; None where the package was installed without one, or with an
    older one. While a function of it runs, other threads run, too."""
    files = targets()
    kind = _KINDS.get(torch.backends.cpu.get_cpu_capability())
    path = files.get(kind, next(reversed(files.values()), None))
    if path is None or not path.exists():
        return None
    loaded = CDLL(str(path))
    for function, (arguments, result) in _FUNCTIONS.items():
        getattr(loaded, function).argtypes = arguments
        getattr(loaded, function).restype = result
    return loaded
