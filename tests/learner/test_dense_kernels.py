"""Dense layers and activations as machine code in torch's autograd, compared with torch's own in
float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from flame_rl.learner.kernels.dense import compile_dense, linear
from torch import nn

from flame_rl.learner.training.choose import network_of
from flame_rl.modules.layers import Activation, Dense
from flame_rl.modules.recurrent import GRU, LSTM


def computed_by(stack: nn.Module, x: torch.Tensor, slope: torch.Tensor) -> list[np.ndarray]:
    """Outputs, and gradients for the inputs and all parameters."""
    own = x.clone().requires_grad_()
    outputs = stack(own)
    (outputs * slope).sum().backward()
    parameters = [parameter.grad for parameter in stack.parameters()]
    return [each.detach().numpy() for each in (outputs, own.grad, *parameters)]


def functions_of(outputs: torch.Tensor) -> set[str]:
    """The names of all that autograd has recorded."""
    waiting, found = [outputs.grad_fn], set()
    while waiting:
        function = waiting.pop()
        found.add(type(function).__name__)
        waiting += [each for each, _ in function.next_functions if each is not None]
    return found


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize(
    "shape, hidden, outputs", [((1, 1), 1, 1), ((7, 3, 5), 19, 2), ((40, 9, 17), 64, 33)]
)
def test_outputs_and_gradients_are_torchs(activation, shape, hidden, outputs):
    torch.manual_seed(hidden)
    compiled = nn.Sequential(
        Dense(shape[-1], hidden), Activation(activation), Dense(hidden, outputs)
    )
    plain = copy.deepcopy(compiled).double()
    compile_dense(compiled)
    x, slope = torch.randn(shape), torch.randn(*shape[:-1], outputs)
    ours = computed_by(compiled, x, slope)
    theirs = computed_by(plain, x.double(), slope.double())
    for own, other in zip(ours, theirs, strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, other, rtol=0, atol=3e-6 * np.abs(other).max() + 1e-6)


def test_views_and_slopes_of_any_layout():
    torch.manual_seed(0)
    compiled = nn.Sequential(Dense(4, 8), Activation("tanh"))
    plain = copy.deepcopy(compiled)
    compile_dense(compiled)
    x, results = torch.randn(6, 5, 8)[..., ::2].transpose(0, 1), []
    for stack in (compiled, plain):
        outputs = stack(x)
        # The slope of a sum is one number, which autograd stretches over all rows.
        gradients = torch.autograd.grad(outputs.transpose(0, 1).sum(), stack.parameters())
        results.append([each.detach().numpy() for each in (outputs, *gradients)])
    for own, other in zip(*results, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


def test_the_slope_that_others_also_get_stays_as_it_is():
    x = torch.randn(3, 5, requires_grad=True)
    activation = Activation("tanh")
    compile_dense(activation)
    slope = torch.ones(3, 5)
    activation(x).backward(slope)
    assert torch.equal(slope, torch.ones(3, 5))


def test_what_changed_before_the_way_back_is_refused():
    stack = nn.Sequential(Dense(4, 8), Activation("silu"))
    compile_dense(stack)
    x = torch.randn(5, 4)
    between = stack[0](x)
    outputs = stack[1](between)
    between.relu_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()
    (slope,) = torch.autograd.grad(stack(x.requires_grad_()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_frozen_parameters_need_no_gradient_and_others_get_theirs_again():
    torch.manual_seed(0)
    compiled = nn.Sequential(Dense(4, 8), Activation("tanh"), Dense(8, 2))
    compiled[2].requires_grad_(False)
    plain, results = copy.deepcopy(compiled), []
    compile_dense(compiled)
    x = torch.randn(5, 4)
    for stack in (compiled, plain):
        total = stack(x).square().sum()
        first = torch.autograd.grad(total, stack[0].weight, retain_graph=True)
        second = torch.autograd.grad(total, stack[0].parameters())
        results.append([each.numpy() for each in (*first, *second)])
    for own, other in zip(*results, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_not_a_number_stays_one(activation):
    stack = nn.Sequential(Dense(4, 3), Activation(activation), Dense(3, 2))
    compile_dense(stack)
    outputs = stack(torch.tensor([[0.0, 1.0, float("nan"), 2.0], [0.0, 1.0, 2.0, 3.0]]))
    assert outputs.isnan().tolist() == [[True, True], [False, False]]


def test_what_is_not_for_machine_code_is_torchs():
    stack = nn.Sequential(Dense(4, 8), Activation("tanh"), Activation("elu"))
    compile_dense(stack)
    x = torch.randn(5, 4)
    assert torch.equal(stack[2](x), nn.functional.elu(x))
    assert stack[1](torch.tensor(0.5)).shape == ()
    assert stack(x[:0]).shape == (0, 8)
    assert linear(x, torch.empty(0, 4), torch.empty(0)).shape == (5, 0)
    with pytest.raises(RuntimeError, match="shapes"):
        stack(torch.randn(3, 5))
    stack[0].bias = nn.Parameter(torch.ones(1))
    assert torch.equal(stack[0](x), nn.functional.linear(x, stack[0].weight, torch.ones(1)))
    with pytest.raises(RuntimeError, match="dtype"):
        stack[0].double()(x)
    assert stack.double()(x.double()).dtype == torch.double


def test_a_layer_that_somebody_derived_computes_what_it_says():
    class Residual(Dense):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(super().forward(x).relu())

    torch.manual_seed(0)
    layer, x = Residual(), torch.randn(3, 4)
    plain = layer(x)
    compile_dense(layer)
    np.testing.assert_allclose(layer(x).detach(), plain.detach(), atol=1e-6)


@pytest.mark.parametrize("memory", [GRU, LSTM])
def test_networks_with_a_memory_use_them_and_their_copies_have_weights_of_their_own(memory):
    torch.manual_seed(0)
    module = nn.Sequential(Dense(4, 8), Activation("tanh"), memory(8, 8), Dense(8, 2))
    x = torch.randn(6, 3, 4)
    plain = module(x)
    network_of(module)
    compiled = module(x)
    names = [type(module[:end](x).grad_fn).__name__ for end in (1, 2)]
    assert names == ["_LinearBackward", "_ActivationBackward"]
    assert "_LinearBackward" in functions_of(module[2](torch.randn(6, 3, 8)))
    np.testing.assert_allclose(compiled.detach(), plain.detach(), atol=1e-5)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other[0].weight.zero_(), other[0].bias.zero_()
    assert torch.equal(module(x), compiled)
    assert not torch.equal(other(x), compiled)
