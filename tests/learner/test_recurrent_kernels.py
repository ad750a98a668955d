"""Memories as machine code, compared with torch's own in float64, differentiated by autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from flame_rl.learner.kernels.recurrent import compile_memories
from flame_rl.modules.recurrent import GRU, LSTM, burning_in


@pytest.mark.parametrize("kind", [GRU, LSTM])
@pytest.mark.parametrize(
    "steps, count, inputs, width", [(1, 1, 1, 1), (7, 3, 5, 19), (20, 9, 4, 64)]
)
@pytest.mark.parametrize("burn_in", [False, True])
def test_outputs_and_gradients_are_torchs(kind, steps, count, inputs, width, burn_in):
    torch.manual_seed(steps)
    compiled = kind(inputs, width)
    with torch.no_grad():
        for parameter in compiled.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    plain = copy.deepcopy(compiled).double()
    compile_memories(compiled)
    x, slope = torch.randn(steps, count, inputs), torch.randn(steps, count, width)
    burnt_in = None
    if burn_in and steps > 1:
        burnt_in = torch.zeros(steps, count, dtype=torch.bool)
        burnt_in[:3, ::2] = True

    def results(memory, dtype):
        own = x.to(dtype, copy=True).requires_grad_()
        with burning_in(memory, burnt_in):
            outputs = memory(own)
        (outputs * slope.to(dtype)).sum().backward()
        with torch.no_grad():
            again = memory.unroll(own)[0]
        gradients = [parameter.grad for parameter in memory.parameters()]
        return [each.detach().numpy() for each in (outputs, again, own.grad, *gradients)]

    for ours, theirs in zip(
        results(compiled, torch.float32), results(plain, torch.float64), strict=True
    ):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max() + 1e-6)


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_one_sequence_and_a_first_state(kind):
    """The gradient passes through the states, too."""
    torch.manual_seed(0)
    compiled = kind(4, 11)
    plain = copy.deepcopy(compiled)
    compile_memories(compiled)
    x = torch.randn(6, 4)
    np.testing.assert_allclose(compiled(x).detach(), plain(x).detach(), atol=2e-6)
    sequences, gradients = torch.randn(6, 2, 4), []
    for memory in (compiled, plain):
        state = tuple(torch.full((1, 2, 11), 0.5, requires_grad=True) for _ in range(kind.states))
        _, last = memory.unroll(sequences, state)
        sum((each * each).sum() for each in last).backward()
        gradients.append([each.grad.numpy() for each in (*state, memory.weight_hh_l0)])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_shapes_that_do_not_fit_are_refused():
    memory = GRU(4, 8)
    compile_memories(memory)
    with pytest.raises(ValueError, match="weight"):
        memory.recurrence(torch.zeros(2, 1, 25), memory.weight_hh_l0, None, None)
