"""The steps of GRUs and LSTMs through sequences, and back, as machine code in torch's autograd.

torch takes a dozen small operations for each time step, and records each of them. S is the number
of sequences, T that of their steps, H that of units. Weights, biases and gates are in torch's
order; each function takes what the inputs contribute to the gates, [T, S, gates * H], the state's
weight, [gates * H, H], its bias, and the states before the first step, [S, H].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.dense import linear, parameter_slopes, without_gaps, write_to_inputs
from flame_rl.learner.kernels.elementwise import tanh
from flame_rl.learner.kernels.emit import Array, Function, Index, Vector
from flame_rl.learner.kernels.library import library
from flame_rl.modules.recurrent import GRU, LSTM


def compile_memories(module: nn.Module) -> None:
    """Let the memories in a module use this, but for those that torch alone computes: of several
    layers, in both directions, or with a projection."""
    for each in module.modules():
        if not isinstance(each, nn.RNNBase) or each.num_layers > 1 or each.bidirectional:
            continue
        if isinstance(each, GRU):
            each.recurrence = _gru_of_inputs
        elif isinstance(each, LSTM) and not each.proj_size:
            each.recurrence = _lstm_of_inputs


def _gru_of_inputs(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> Tensor:
    return _GRU.apply(linear(x, weight, bias), *others)


def _lstm_of_inputs(
    x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor
) -> tuple[Tensor, Tensor]:
    return _LSTM.apply(linear(x, weight, bias), *others)


class _GRU(torch.autograd.Function):
    """Returns the outputs, [T, S, H]."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        steps, count, width = _sizes(given, weight, bias, state)
        given, weight, bias = map(without_gaps, (given, weight, bias))
        states = _states(steps, state)
        products, gates = np.empty_like(given), np.empty_like(given)
        transposed = np.ascontiguousarray(weight.T)
        _functions()["gru"](given, transposed, bias, states, products, gates, steps, count, width)
        ctx.kept = weight, states, products, gates
        outputs = torch.from_numpy(states[1:])
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        _ = ctx.saved_tensors  # raises if somebody changed the outputs, which are among the states
        weight, states, products, gates = ctx.kept
        steps, count, width = slope.shape
        of_given, of_products = np.empty_like(gates), np.empty_like(gates)
        of_state, rest = np.zeros((2, count, width), np.float32)
        _functions()["gru_back"](
            *(without_gaps(slope), weight, states, products, gates),
            *(of_given, of_products, of_state, rest, steps, count, width),
        )
        of_state += rest
        return _slopes(of_given, of_products, states, of_state)


class _LSTM(torch.autograd.Function):
    """Takes the cells after the outputs; returns the outputs, [T, S, H], and the last cells."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor, state: Tensor, cells: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, count, width = _sizes(given, weight, bias, state, cells)
        given, weight, bias = map(without_gaps, (given, weight, bias))
        states, cells = _states(steps, state), _states(steps, cells)
        gates, shown = np.empty_like(given), np.empty_like(states[1:])
        products = np.empty(given.shape[1:], np.float32)
        transposed = np.ascontiguousarray(weight.T)
        _functions()["lstm"](
            *(given, transposed, bias, states, cells, products, gates, shown),
            *(steps, count, width),
        )
        ctx.kept = weight, states, cells, gates, shown
        results = torch.from_numpy(states[1:]), torch.from_numpy(cells[-1])
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, of_cells: Tensor) -> tuple[Tensor, ...]:
        _ = ctx.saved_tensors
        weight, states, cells, gates, shown = ctx.kept
        steps, count, width = slope.shape
        of_gates, of_state = np.empty_like(gates), np.zeros((count, width), np.float32)
        of_cells = without_gaps(of_cells).copy()
        _functions()["lstm_back"](
            *(without_gaps(slope), weight, cells, gates, shown),
            *(of_gates, of_state, of_cells, steps, count, width),
        )
        slopes = _slopes(of_gates, of_gates, states, of_state)
        return *slopes, torch.from_numpy(of_cells)


def _sizes(given: Tensor, weight: Tensor, bias: Tensor, *states: Tensor) -> tuple[int, int, int]:
    """T, S and H. Raises ValueError for shapes that do not fit, which machine code would not
    notice."""
    steps, count, gates = given.shape
    width = weight.shape[1]
    expected = [(gates, width), (gates,), *[(count, width)] * len(states)]
    found = [tuple(each.shape) for each in (weight, bias, *states)]
    if found != expected or gates != width * (2 + len(states)):
        raise ValueError(f"weight, bias and states: {found}, not {expected}")
    return steps, count, width


def _states(steps: int, first: Tensor) -> np.ndarray:
    """Room for those before and after each step, [T + 1, S, H]."""
    states = np.empty((steps + 1, *first.shape), np.float32)
    states[0] = first.detach().numpy()
    return states


def _slopes(
    of_given: np.ndarray, of_products: np.ndarray, states: np.ndarray, of_state: np.ndarray
) -> tuple[Tensor, ...]:
    """For what the inputs contribute, the weight, the bias and the first state; `of_products` is
    for what the states contribute."""
    flat = of_products.reshape(-1, of_products.shape[-1])
    of_parameters = parameter_slopes(flat, states[:-1].reshape(len(flat), states.shape[-1]))
    return tuple(map(torch.from_numpy, (of_given, *of_parameters, of_state)))


@engine.compiled_once
def _functions() -> dict[str, Callable[..., None]]:
    """Compile them. Arguments: see the writers."""
    library()
    arrays = {
        "gru": "given transposed bias states products gates",
        "gru_back": "slope weight states products gates of_given of_products of_state rest",
        "lstm": "given transposed bias states cells products gates shown",
        "lstm_back": "slope weight cells gates shown of_gates of_state of_cells",
    }
    writers = {"gru": _gru, "gru_back": _gru_back, "lstm": _lstm, "lstm_back": _lstm_back}
    return engine.functions(
        {name: (write, arrays[name], "steps count width") for name, write in writers.items()}
    )


def _sigmoid(x: Vector) -> Vector:
    """By tanh, which is quicker than the exponential."""
    return tanh(x * 0.5) * 0.5 + 0.5


def _bell(y: Vector) -> Vector:
    """The derivative of a sigmoid, given its value."""
    return y * (1.0 - y)


def _gru(f: Function, *arguments: Any) -> None:
    """`products` are those of the states with their weights, [T, S, 3H]; r and z are the gates of a
    step and n its candidate, in `gates`: h' = n + z (h - n)."""
    given, transposed, bias, states, products, gates, steps, count, width = arguments
    row, size = width * 3, count * width
    with f.loop(steps) as t:
        before, after, at = states + t * size, states + (t + 1) * size, t * size * 3
        own = products + at
        f.call(
            *("product", own, before, transposed, bias),
            *(row, width, 1, row, 1, count, width, row),
        )
        with f.loop(count) as sequence:
            g, k, opened = (each + sequence * row for each in (given + at, own, gates + at))
            h, following = before + sequence * width, after + sequence * width
            for i, mask in f.vectors(width):
                r, z = (
                    _sigmoid(_part(g, gate, width, i, mask) + _part(k, gate, width, i, mask))
                    for gate in (0, 1)
                )
                n = _part(k, 2, width, i, mask).times_plus(r, _part(g, 2, width, i, mask))
                n = tanh(n)
                _store(opened, (r, z, n), width, i, mask)
                (following + i).store(z.times_plus((h + i).load(mask) - n, n), mask)


def _gru_back(f: Function, *arguments: Any) -> None:
    """`of_given` and `of_products` are the slopes for what the inputs and the states contribute,
    `of_state` and `rest` add up to that for the state before a step."""
    slope, weight, states, products, gates, *arguments = arguments
    of_given, of_products, of_state, rest, steps, count, width = arguments
    row, size = width * 3, count * width
    with f.loop(steps) as done:
        t = (steps - 1) - done
        own = of_products + t * size * 3
        with f.loop(count) as sequence:
            at = t * size * 3 + sequence * row
            k, opened, to_given, to_k = (
                each + at for each in (products, gates, of_given, of_products)
            )
            h, d = (each + (t * size + sequence * width) for each in (states, slope))
            of_h, of_rest = (each + sequence * width for each in (of_state, rest))
            for i, mask in f.vectors(width):
                r, z, n = (_part(opened, gate, width, i, mask) for gate in range(3))
                total = sum((each + i).load(mask) for each in (d, of_h, of_rest))
                of_n = total * (1.0 - z) * (1.0 - n * n)
                of_r = of_n * _part(k, 2, width, i, mask) * _bell(r)
                of_z = total * ((h + i).load(mask) - n) * _bell(z)
                _store(to_given, (of_r, of_z, of_n), width, i, mask)
                _store(to_k, (of_r, of_z, of_n * r), width, i, mask)
                (of_rest + i).store(total * z, mask)
        write_to_inputs(f, of_state, own, weight, count, width, row)


def _lstm(f: Function, *arguments: Any) -> None:
    """i, f, g and o are the gates and the candidate of a step, in `gates`, and `products` those of
    its states, [S, 4H]: c' = f c + i g, h' = o tanh(c'), with tanh(c') in `shown`."""
    given, transposed, bias, states, cells, products, gates, shown, steps, count, width = arguments
    row, size = width * 4, count * width
    with f.loop(steps) as t:
        at = t * size * 4
        f.call(
            *("product", products, states + t * size, transposed, bias),
            *(row, width, 1, row, 1, count, width, row),
        )
        with f.loop(count) as sequence:
            g, opened = (each + (at + sequence * row) for each in (given, gates))
            k, place = products + sequence * row, t * size + sequence * width
            for i, mask in f.vectors(width):
                let_in, keep, new, let_out = (
                    _part(g, gate, width, i, mask) + _part(k, gate, width, i, mask)
                    for gate in range(4)
                )
                let_in, keep, let_out = map(_sigmoid, (let_in, keep, let_out))
                new = tanh(new)
                _store(opened, (let_in, keep, new, let_out), width, i, mask)
                cell = keep * (cells + (place + i)).load(mask) + let_in * new
                bounded = tanh(cell)
                (cells + (place + size + i)).store(cell, mask)
                (shown + (place + i)).store(bounded, mask)
                (states + (place + size + i)).store(let_out * bounded, mask)


def _lstm_back(f: Function, *arguments: Any) -> None:
    """`of_gates` are the slopes before the gates' functions; `of_state` and `of_cells` are those
    for what is before a step."""
    slope, weight, cells, gates, shown, *arguments = arguments
    of_gates, of_state, of_cells, steps, count, width = arguments
    row, size = width * 4, count * width
    with f.loop(steps) as done:
        t = (steps - 1) - done
        own = of_gates + t * size * 4
        with f.loop(count) as sequence:
            opened, to_gates = (
                each + (t * size * 4 + sequence * row) for each in (gates, of_gates)
            )
            d, c, y = (each + (t * size + sequence * width) for each in (slope, cells, shown))
            of_h, of_c = (each + sequence * width for each in (of_state, of_cells))
            for i, mask in f.vectors(width):
                let_in, keep, new, let_out = (
                    _part(opened, gate, width, i, mask) for gate in range(4)
                )
                total, bounded = (d + i).load(mask) + (of_h + i).load(mask), (y + i).load(mask)
                of_cell = (total * let_out).times_plus(
                    1.0 - bounded * bounded, (of_c + i).load(mask)
                )
                _store(
                    to_gates,
                    (
                        of_cell * new * _bell(let_in),
                        of_cell * (c + i).load(mask) * _bell(keep),
                        of_cell * let_in * (1.0 - new * new),
                        total * bounded * _bell(let_out),
                    ),
                    *(width, i, mask),
                )
                (of_c + i).store(of_cell * keep, mask)
        write_to_inputs(f, of_state, own, weight, count, width, row)


def _part(array: Array, gate: int, width: Index, i: Index, mask: ir.Value | None) -> Vector:
    """Numbers of one gate in the row of a sequence."""
    return (array + (width * gate + i)).load(mask)


def _store(
    array: Array, parts: tuple[Vector, ...], width: Index, i: Index, mask: ir.Value | None
) -> None:
    for gate, part in enumerate(parts):
        (array + (width * gate + i)).store(part, mask)
