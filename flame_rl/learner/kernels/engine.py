"""Turn LLVM's intermediate representation into machine code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from llvmlite import binding, ir

_CTYPES = {"array": ctypes.c_void_p, "integer": ctypes.c_int64, "number": ctypes.c_float}


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


def function(name: str, kinds: Sequence[str]) -> ctypes._CFuncPtr:
    """A compiled function, which lets other threads run meanwhile. Its arguments are addresses,
    integers and numbers; see `emit.Function`."""
    prototype = ctypes.CFUNCTYPE(None, *(_CTYPES[kind] for kind in kinds))
    return prototype(_engine().get_function_address(name))
