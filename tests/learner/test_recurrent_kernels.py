"""Memories as machine code, compared with torch's own in float64, differentiated by autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from flame_rl.learner.kernels.recurrent import compile_memories

from flame_rl.learner.training.choose import network_of
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
def test_one_sequence(kind):
    torch.manual_seed(0)
    x, results = torch.randn(6, 4), []
    compiled = kind(4, 11)
    plain = copy.deepcopy(compiled)
    compile_memories(compiled)
    for memory in (compiled, plain):
        outputs = memory(x)
        gradients = torch.autograd.grad((outputs * outputs).sum(), memory.parameters())
        results.append([each.detach().numpy() for each in (outputs, *gradients)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_the_gradient_passes_through_the_states(kind):
    torch.manual_seed(0)
    compiled = kind(4, 11)
    plain = copy.deepcopy(compiled)
    compile_memories(compiled)
    sequences, results = torch.randn(6, 2, 4), []
    for memory in (compiled, plain):
        state = tuple(torch.full((1, 2, 11), 0.5, requires_grad=True) for _ in range(kind.states))
        _, last = memory.unroll(sequences, state)
        sum((each * each).sum() for each in last).backward()
        results.append([each.grad.numpy() for each in (*state, memory.weight_hh_l0)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_what_would_give_wrong_numbers_is_refused(kind):
    memory = kind(4, 8)
    compile_memories(memory)
    x = torch.randn(5, 3, 4)
    with pytest.raises(ValueError, match="states"):
        memory.unroll(x, (torch.zeros(1, 1, 8),) * kind.states)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        memory(x).relu_().sum().backward()
    (slope,) = torch.autograd.grad(memory(x.requires_grad_()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_what_torch_alone_computes_stays_torchs(kind):
    class Deep(kind):
        def __init__(self) -> None:
            torch.nn.RNNBase.__init__(self, kind.__name__, 4, 8, num_layers=2)

    deep, double = Deep(), kind(4, 8)
    compile_memories(torch.nn.Sequential(deep, double))
    assert deep.recurrence is None
    assert double.double()(torch.zeros(2, 1, 4, dtype=torch.double)).dtype == torch.double


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_a_network_in_training_and_its_copies_use_them(kind):
    module = torch.nn.Sequential(kind(4, 8))
    assert module[0].recurrence is None
    network_of(module)
    assert module[0].recurrence is not None
    assert copy.deepcopy(module)[0].recurrence is not None
