"""Turn LLVM's intermediate representation into machine code in this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, wraps
from typing import TypeVar

from llvmlite import binding, ir

from flame_rl.learner.kernels.emit import Function, python_name

Result = TypeVar("Result")

_CTYPES = {"array": ctypes.py_object, "integer": ctypes.c_int64, "number": ctypes.c_float}
# Compilers are not made for several threads, and slices of a minibatch may come from several.
_LOCK = threading.RLock()


@cache
def _engine() -> binding.ExecutionEngine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def load(module: ir.Module) -> None:
    """Compile the module's functions; later modules may call them."""
    engine = _engine()
    engine.add_module(binding.parse_assembly(str(module)))
    engine.finalize_object()


def compiled_once(function: Callable[..., Result]) -> Callable[..., Result]:
    """A function that compiles something, called once for the same arguments."""
    known: dict[tuple, Result] = {}

    @wraps(function)
    def call(*arguments: Hashable) -> Result:
        # Without the lock in the usual case.
        if arguments not in known:
            with _LOCK:
                if arguments not in known:
                    known[arguments] = function(*arguments)
        return known[arguments]

    return call


def function(name: str, kinds: Sequence[str]) -> Callable[..., None]:
    """A compiled function, which lets other threads run meanwhile. Arrays are NumPy's, of the type
    and without the gaps that the function expects: nothing is checked."""
    prototype = ctypes.CFUNCTYPE(None, *(_CTYPES[kind] for kind in kinds))
    return prototype(_engine().get_function_address(python_name(name)))


def functions(
    writers: Mapping[str, tuple[Callable[..., None], *tuple[str, ...]]],
) -> dict[str, Callable[..., None]]:
    """Compile functions for Python, which later modules may call.

    Args:
        writers: for each function by name, what writes its statements, given a `Function` and its
            arguments, and then the names of the arguments, with blanks between them: first those
            of arrays, then of integers, then of numbers. No two are the same.
    """
    module, kinds = ir.Module(), {}
    for name, (write, *arguments) in writers.items():
        kinds[name] = {
            argument: kind
            for kind, names in zip(("array", "integer", "number"), arguments, strict=False)
            for argument in names.split()
        }
        f = Function(module, name, **kinds[name])
        write(f, *f.arguments)
        f.end(for_python=True)
    load(module)
    return {name: function(name, [*own.values()]) for name, own in kinds.items()}
