"""Write functions over arrays of float32 in LLVM's intermediate representation.

Python runs once, when a function is written: a Python loop is unrolled, `Function.loop` is a loop
of the machine. Numbers are `Vector`s of `LANES` float32, which is what a register holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import binding, ir

_FEATURES = binding.get_host_cpu_features()
# Of the vectors of this processor: AVX-512, AVX2, or 128 bits.
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx2") else 4
REGISTERS = 16 if LANES == 8 else 32

_INTEGER, _FLOAT, _LANE = ir.IntType(64), ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_POINTER = _FLOAT.as_pointer()
_OBJECT = ir.IntType(8).as_pointer()
_TYPES = {"array": _POINTER, "shared": _POINTER, "integer": _INTEGER, "number": _FLOAT}
_INTEGERS = ir.VectorType(_LANE, LANES)
_ZERO, _ZEROS = ir.Constant(_LANE, 0), ir.Constant(_INTEGERS, [0] * LANES)

# e^x for |x| <= ln(2) / 2, and (e^x - 1) / x for |x| <= 0.5, as polynomials, lowest power first:
# the best ones of degree 6 by their relative error, 2e-9 and 3e-9.
_EXP = 1.0, 1.000000036, 0.4999999208, 0.1666642017, 0.04166822564, 0.008374815782, 0.001383684198
_EXPM1 = 1.0, 0.5000000417, 0.1666666291, 0.0416653182, 0.008333634677, 0.001399732434, 0.0001984118
_LOG2_E = 1.4426950408889634
# ln(2) in two numbers, the first of which has few digits, so that its multiples are exact.
_LN2 = 0.693145751953125, 1.4286068203094172e-06
# float32 ends near e^88.
_EXP_ENDS = 88.0


def padded(width: int) -> int:
    """The numbers in a row of whole vectors."""
    return -(-width // LANES) * LANES


def python_name(name: str) -> str:
    """The name of a function's twin for Python; see `Function.end`."""
    return f"{name}_for_python"


class Index:
    """An integer of 64 bits."""

    def __init__(self, function: Function, value: ir.Value) -> None:
        self.function, self.value = function, value

    def __add__(self, other: Index | int) -> Index:
        return self._of(self.function.builder.add, other)

    def __sub__(self, other: Index | int) -> Index:
        return self._of(self.function.builder.sub, other)

    def __mul__(self, other: Index | int) -> Index:
        return self._of(self.function.builder.mul, other)

    def __floordiv__(self, other: int) -> Index:
        return self._of(self.function.builder.udiv, other)

    def divided(self, other: Index) -> Index:
        return self._of(self.function.builder.udiv, other)

    def number(self) -> Vector:
        return self.function.broadcast(self.function.builder.sitofp(self.value, _FLOAT))

    def _of(self, operation: Callable[..., ir.Value], other: Index | int) -> Index:
        return Index(self.function, operation(self.value, self.function.integer(other).value))


class Vector:
    """`LANES` numbers. Functions of NumPy that are elementwise take it for an array, and write what
    they would do; see `_UFUNCS`."""

    def __init__(self, function: Function, value: ir.Value) -> None:
        self.function, self.value = function, value

    def __add__(self, other: Vector | float) -> Vector:
        return self._of(self.function.builder.fadd, other)

    def __sub__(self, other: Vector | float) -> Vector:
        return self._of(self.function.builder.fsub, other)

    def __mul__(self, other: Vector | float) -> Vector:
        return self._of(self.function.builder.fmul, other)

    def __truediv__(self, other: Vector | float) -> Vector:
        return self._of(self.function.builder.fdiv, other)

    def __rsub__(self, other: float) -> Vector:
        return self.function.vector(other) - self

    def __rtruediv__(self, other: float) -> Vector:
        return self.function.vector(other) / self

    def __neg__(self) -> Vector:
        return Vector(self.function, self.function.builder.fneg(self.value))

    __radd__, __rmul__ = __add__, __mul__

    def times_plus(self, factor: Vector | float, other: Vector | float) -> Vector:
        """self * factor + other, rounded once."""
        return self.function.intrinsic("fma", self, factor, other)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Any:
        if method != "__call__" or ufunc not in _UFUNCS:
            return NotImplemented
        return _UFUNCS[ufunc](*map(self.function.vector, inputs))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Vector:
        if function is not np.where or kwargs:
            return NotImplemented
        mask, chosen, other = args
        return self.function.vector(other).unless(mask, chosen)

    def power_of_two(self) -> Vector:
        """2^self, for integers from -126 to 127."""
        builder, integers = self.function.builder, ir.VectorType(_LANE, LANES)
        exponent = builder.fptosi(self.value, integers)
        biased = builder.add(exponent, ir.Constant(integers, [127] * LANES))
        bits = builder.shl(biased, ir.Constant(integers, [23] * LANES))
        return Vector(self.function, builder.bitcast(bits, _VECTOR))

    def power_and_factor(self) -> tuple[Vector, Vector]:
        """k and f with self = 2^k f and f from 1 to below 2, for positive numbers."""
        builder, integers = self.function.builder, ir.VectorType(_LANE, LANES)
        bits = builder.bitcast(self.value, integers)
        exponent = builder.lshr(bits, ir.Constant(integers, [23] * LANES))
        power = builder.sitofp(builder.sub(exponent, ir.Constant(integers, [127] * LANES)), _VECTOR)
        rest = builder.and_(bits, ir.Constant(integers, [(1 << 23) - 1] * LANES))
        factor = builder.or_(rest, ir.Constant(integers, [127 << 23] * LANES))
        vector = builder.bitcast(factor, _VECTOR)
        return Vector(self.function, power), Vector(self.function, vector)

    def polynomial(self, coefficients: Sequence[float]) -> Vector:
        """Lowest power first."""
        value = self.function.vector(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = value.times_plus(self, coefficient)
        return value

    def exp(self) -> Vector:
        """Within 2e-7 of e^self; below float32's least normal number it is 0."""
        x = self.within(-_EXP_ENDS, _EXP_ENDS)
        power = self.function.intrinsic("rint", x * _LOG2_E)
        rest = power.times_plus(-_LN2[0], x)
        rest = power.times_plus(-_LN2[1], rest)
        value = rest.polynomial(_EXP) * power.power_of_two()
        value = value.unless(self < -_EXP_ENDS, 0.0)
        return value.unless(self > _EXP_ENDS, math.inf)

    def expm1(self) -> Vector:
        """Within 2e-7 of e^self - 1, relatively."""
        near = self * self.polynomial(_EXPM1)
        return (self.exp() - 1.0).unless(self.absolute() < 0.5, near)

    def sqrt(self) -> Vector:
        return self.function.intrinsic("sqrt", self)

    def absolute(self) -> Vector:
        return self.function.intrinsic("fabs", self)

    def __lt__(self, bound: Vector | float) -> ir.Value:
        """The mask of lanes below the bound; NaN is not."""
        return self._compare("<", bound)

    def __le__(self, bound: Vector | float) -> ir.Value:
        return self._compare("<=", bound)

    def __gt__(self, bound: Vector | float) -> ir.Value:
        return self._compare(">", bound)

    def equals(self, other: Vector | float) -> ir.Value:
        return self._compare("==", other)

    def unless(self, mask: ir.Value, other: Vector | float) -> Vector:
        """self, but in the mask's lanes the other."""
        other = self.function.vector(other)
        return Vector(self.function, self.function.builder.select(mask, other.value, self.value))

    def only(self, mask: ir.Value) -> Vector:
        """self in the mask's lanes, 0 in the others."""
        value = self.function.builder.select(mask, self.value, self.function.vector(0.0).value)
        return Vector(self.function, value)

    def within(self, low: float, high: float) -> Vector:
        """Clipped to these; NaN stays NaN."""
        above = self.unless(self < low, low)
        return above.unless(above > high, high)

    def sum(self) -> Vector:
        """The sum of all lanes, in all lanes."""
        total, width = self, LANES // 2
        while width:
            total = total + total.shuffle(total, [lane ^ width for lane in range(LANES)])
            width //= 2
        return total

    def greatest(self) -> Vector:
        """The greatest of all lanes, in all lanes; NaN in any lane may be left out."""
        most, width = self, LANES // 2
        while width:
            other = most.shuffle(most, [lane ^ width for lane in range(LANES)])
            most, width = most.unless(most < other, other), width // 2
        return most

    def shuffle(self, other: Vector, lanes: Sequence[int]) -> Vector:
        """Lanes of both vectors, numbered one after the other."""
        order = ir.Constant(ir.VectorType(_LANE, LANES), list(lanes))
        value = self.function.builder.shuffle_vector(self.value, other.value, order)
        return Vector(self.function, value)

    def _compare(self, sign: str, bound: Vector | float) -> ir.Value:
        other = self.function.vector(bound)
        return self.function.builder.fcmp_ordered(sign, self.value, other.value)

    def _of(self, operation: Callable[..., ir.Value], other: Vector | float) -> Vector:
        return Vector(self.function, operation(self.value, self.function.vector(other).value))


# What NumPy's functions do with vectors. In a minimum and a maximum, NaN in the first stays NaN.
_UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: Vector.__add__,
    np.subtract: Vector.__sub__,
    np.multiply: Vector.__mul__,
    np.true_divide: Vector.__truediv__,
    np.negative: Vector.__neg__,
    np.less_equal: Vector.__le__,
    np.minimum: lambda x, y: x.unless(x > y, y),
    np.maximum: lambda x, y: x.unless(x < y, y),
    np.exp: Vector.exp,
    np.expm1: Vector.expm1,
}


class Array:
    """Where numbers of float32 begin in memory."""

    def __init__(self, function: Function, pointer: ir.Value) -> None:
        self.function, self.pointer = function, pointer

    def __add__(self, index: Index | int) -> Array:
        place = self.function.integer(index).value
        return Array(self.function, self.function.builder.gep(self.pointer, [place]))

    def address(self, place: int) -> Array:
        """The address at a place of a table of addresses."""
        builder = self.function.builder
        table = builder.bitcast(self.pointer, _POINTER.as_pointer())
        return Array(
            self.function, builder.load(builder.gep(table, [ir.Constant(_INTEGER, place)]))
        )

    def integer(self, place: Index) -> Index:
        """The integer of 64 bits at a place of an array of such."""
        builder = self.function.builder
        table = builder.bitcast(self.pointer, _INTEGER.as_pointer())
        return Index(self.function, builder.load(builder.gep(table, [place.value])))

    def number(self) -> Vector:
        """The first number, in all lanes."""
        return self.function.broadcast(self.function.builder.load(self.pointer, align=4))

    def load(self, mask: ir.Value | None = None) -> Vector:
        """The first `LANES` numbers; with a mask only its lanes are read, and others are 0."""
        function, builder = self.function, self.function.builder
        if mask is None:
            pointer = builder.bitcast(self.pointer, _VECTOR.as_pointer())
            return Vector(function, builder.load(pointer, align=4))
        load = function.declared("masked.load", _VECTOR, [_POINTER, _LANE, _MASK, _VECTOR], ".p0")
        zeros = function.vector(0.0).value
        return Vector(
            function, builder.call(load, [self.pointer, ir.Constant(_LANE, 4), mask, zeros])
        )

    def store(self, vector: Vector, mask: ir.Value | None = None) -> None:
        """Write the vector, or the mask's lanes of it."""
        function, builder = self.function, self.function.builder
        if mask is None:
            pointer = builder.bitcast(self.pointer, _VECTOR.as_pointer())
            builder.store(vector.value, pointer, align=4)
            return
        types = [_VECTOR, _POINTER, _LANE, _MASK]
        store = function.declared("masked.store", ir.VoidType(), types, ".p0")
        builder.call(store, [vector.value, self.pointer, ir.Constant(_LANE, 4), mask])


class Function:
    """A function without a result, in the order in which its statements are written."""

    def __init__(self, module: ir.Module, name: str, **arguments: str) -> None:
        """
        Args:
            module: where it is defined.
            name: its name there.
            arguments: "array", "shared", "integer" or "number" by name. No "array" overlaps another
                argument, which makes a function faster; a "shared" one may be another "shared" one.
        """
        self.module = module
        types = [_TYPES[kind] for kind in arguments.values()]
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.arguments: list[Any] = []
        for argument, (own, kind) in zip(self.function.args, arguments.items(), strict=True):
            argument.name = own
            if kind == "array":
                argument.add_attribute("noalias")
            if kind in ("array", "shared"):
                self.arguments.append(Array(self, argument))
            elif kind == "integer":
                self.arguments.append(Index(self, argument))
            else:
                self.arguments.append(self.broadcast(argument))

    def end(self, for_python: bool = False) -> ir.Function:
        """The function is complete. With `for_python`, there is another one of the name that
        `python_name` gives, which takes NumPy's objects in place of arrays."""
        self.builder.ret_void()
        if for_python:
            self._write_for_python()
        return self.function

    def _write_for_python(self) -> None:
        arguments = self.function.args
        types = [_OBJECT if each.type == _POINTER else each.type for each in arguments]
        kind, name = ir.FunctionType(ir.VoidType(), types), python_name(self.function.name)
        function = ir.Function(self.module, kind, name)
        builder = ir.IRBuilder(function.append_basic_block())
        values = []
        for argument in function.args:
            value = argument
            if argument.type == _OBJECT:
                # The first field of an array, after what every object of Python begins with, is
                # the address of its numbers (NumPy's C API, PyArrayObject).
                field = builder.gep(argument, [ir.Constant(_INTEGER, object.__basicsize__)])
                value = builder.load(builder.bitcast(field, _POINTER.as_pointer()))
            values.append(value)
        builder.call(self.function, values)
        builder.ret_void()

    def call(self, function: ir.Function | str, *arguments: Array | Vector | Index | int) -> None:
        """Call a function, by its name where another module has it. Of a vector, it gets the first
        number."""
        values = [self._argument(argument) for argument in arguments]
        if isinstance(function, str):
            function = self.module.globals.get(function) or ir.Function(
                self.module,
                ir.FunctionType(ir.VoidType(), [value.type for value in values]),
                function,
            )
        self.builder.call(function, values)

    def _argument(self, argument: Array | Vector | Index | int) -> ir.Value:
        if isinstance(argument, Array):
            return argument.pointer
        if isinstance(argument, Vector):
            return self.builder.extract_element(argument.value, _ZERO)
        return self.integer(argument).value

    def constants(self, number: float) -> Array:
        """`LANES` times the same number, in memory."""
        name = f"constant_{number}"
        known = self.module.globals.get(name)
        if known is None:
            known = ir.GlobalVariable(self.module, _VECTOR, name)
            known.initializer, known.global_constant = self.vector(number).value, True
            known.linkage = "internal"
        return Array(self, self.builder.bitcast(known, _POINTER))

    @contextmanager
    def loop(
        self, count: Index | int, step: int = 1, first: Index | int = 0, whole: bool = True
    ) -> Iterator[Index]:
        """Indices from `first` to below `count`; with `whole`, only those of whole steps."""
        with self.loop_with(count, [], step, first, whole) as (index, _, _):
            yield index

    @contextmanager
    def loop_with(
        self,
        count: Index | int,
        initial: Sequence[Vector],
        step: int = 1,
        first: Index | int = 0,
        whole: bool = True,
    ) -> Iterator[tuple[Index, list[Vector], list[Vector]]]:
        """A loop that carries vectors from one step to the next.

        Yields:
            The index; the vectors at the beginning of a step; and a list to be filled with those at
            its end. After the loop, the first two are those after the last step.
        """
        builder = self.builder
        count, first = self.integer(count), self.integer(first)
        before = builder.block
        test, body, after = (self.function.append_basic_block() for _ in range(3))
        builder.branch(test)
        builder.position_at_end(test)
        index = builder.phi(_INTEGER)
        index.add_incoming(first.value, before)
        carried = [builder.phi(_VECTOR) for _ in initial]
        for phi, vector in zip(carried, initial, strict=True):
            phi.add_incoming(vector.value, before)
        following = builder.add(index, ir.Constant(_INTEGER, step))
        last = following if whole else builder.add(index, ir.Constant(_INTEGER, 1))
        builder.cbranch(builder.icmp_signed("<=", last, count.value), body, after)
        builder.position_at_end(body)
        results: list[Vector] = []
        yield Index(self, index), [Vector(self, phi) for phi in carried], results
        index.add_incoming(following, builder.block)
        for phi, vector in zip(carried, results, strict=True):
            phi.add_incoming(vector.value, builder.block)
        builder.branch(test)
        builder.position_at_end(after)

    @contextmanager
    def slices(self, count: Index, most: Index) -> Iterator[tuple[Index, Index, Index]]:
        """Slices of almost even size, as few as possible of at most `most`: the place of each among
        them, where it begins, and how long it is."""
        number = (count + (most - 1)).divided(most)
        with self.loop(number) as place:
            start = (count * place).divided(number)
            yield place, start, (count * (place + 1)).divided(number) - start

    def vectors(self, count: Index) -> Iterator[tuple[Index, ir.Value | None]]:
        """Write statements twice: for whole vectors, without a mask, and for what is left."""
        with self.loop(count, step=LANES) as index:
            yield index, None
        yield index, self.first_lanes(count - index)

    @contextmanager
    def when_equal(self, index: Index, value: int) -> Iterator[None]:
        """Statements for one value of an index."""
        condition = self.builder.icmp_signed("==", index.value, ir.Constant(_INTEGER, value))
        with self.builder.if_then(condition):
            yield

    @contextmanager
    def when(self, mask: ir.Value) -> Iterator[None]:
        """Statements for where a mask has the first lane."""
        with self.builder.if_then(self.builder.extract_element(mask, _ZERO)):
            yield

    @contextmanager
    def if_whole(self, *counts: Index) -> Iterator[tuple[Any, Any]]:
        """Two contexts: for statements where each count is that of a whole vector or more, and for
        those of the other case. Many processors store with a mask ten times as slowly."""
        whole = ir.Constant(ir.IntType(1), 1)
        for count in counts:
            enough = self.builder.icmp_signed(">=", count.value, ir.Constant(_INTEGER, LANES))
            whole = self.builder.and_(whole, enough)
        with self.builder.if_else(whole) as contexts:
            yield contexts

    @contextmanager
    def if_first(self, index: Index) -> Iterator[tuple[Any, Any]]:
        """Two contexts: for statements where the index is 0, and for those of the other case."""
        first = self.builder.icmp_signed("==", index.value, ir.Constant(_INTEGER, 0))
        with self.builder.if_else(first) as contexts:
            yield contexts

    def padded(self, width: Index) -> Index:
        """The numbers in a row of whole vectors."""
        return (width + (LANES - 1)) // LANES * LANES

    def integer(self, value: Index | int) -> Index:
        if isinstance(value, Index):
            return value
        return Index(self, ir.Constant(_INTEGER, value))

    def vector(self, value: Vector | float) -> Vector:
        """The same number in all lanes."""
        if isinstance(value, Vector):
            return value
        return Vector(self, ir.Constant(_VECTOR, [ir.Constant(_FLOAT, float(value))] * LANES))

    def from_number(self, first: int) -> Vector:
        """`first` in the first lane, and one more in each lane after it."""
        numbers = [ir.Constant(_FLOAT, float(first + lane)) for lane in range(LANES)]
        return Vector(self, ir.Constant(_VECTOR, numbers))

    def broadcast(self, number: ir.Value) -> Vector:
        empty = ir.Constant(_VECTOR, ir.Undefined)
        one = self.builder.insert_element(empty, number, _ZERO)
        return Vector(self, self.builder.shuffle_vector(one, one, _ZEROS))

    def first_lanes(self, count: Index | int) -> ir.Value:
        """The mask of the first lanes; of all where the count is greater. For the body of a loop
        that is entered later, `kept_mask` is quicker, unless the count is an `int`."""
        if isinstance(count, int):
            flags = [ir.Constant(ir.IntType(1), int(lane < count)) for lane in range(LANES)]
            return ir.Constant(_MASK, flags)
        builder, most = self.builder, ir.Constant(_INTEGER, LANES)
        fewer = builder.icmp_signed("<", count.value, most)
        number = builder.trunc(builder.select(fewer, count.value, most), _LANE)
        one = builder.insert_element(ir.Constant(_INTEGERS, ir.Undefined), number, _ZERO)
        counts = builder.shuffle_vector(one, one, _ZEROS)
        return builder.icmp_signed("<", ir.Constant(_INTEGERS, list(range(LANES))), counts)

    def kept_mask(self, mask: ir.Value) -> ir.Value:
        """A mask for loops that are entered later, for `mask_again`: of 32 bits a lane, as AVX2's
        masked loads take it. LLVM would keep 16 and widen them at each use."""
        return self.builder.sext(mask, _INTEGERS)

    def mask_again(self, kept: ir.Value) -> ir.Value:
        """The mask of which `kept_mask` made this."""
        return self.builder.icmp_signed("<", kept, _ZEROS)

    def only_if_below(self, mask: ir.Value, index: Index | int, count: Index) -> ir.Value:
        """The mask, or an empty one unless the index is below the count."""
        below = self.builder.icmp_signed("<", self.integer(index).value, count.value)
        empty = ir.Constant(_MASK, [ir.Constant(ir.IntType(1), 0)] * LANES)
        return self.builder.select(below, mask, empty)

    def intrinsic(self, name: str, *vectors: Vector | float) -> Vector:
        values = [self.vector(vector).value for vector in vectors]
        function = self.declared(name, _VECTOR, [_VECTOR] * len(values))
        return Vector(self, self.builder.call(function, values))

    def declared(
        self, name: str, result: ir.Type, types: Sequence[ir.Type], suffix: str = ""
    ) -> ir.Function:
        """An intrinsic function of LLVM on vectors."""
        full = f"llvm.{name}.v{LANES}f32{suffix}"
        known = self.module.globals.get(full)
        return known or ir.Function(self.module, ir.FunctionType(result, types), full)
