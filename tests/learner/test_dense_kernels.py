"""Dense layers and activations as machine code in torch's autograd, compared with torch's own in
float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from flame_rl.learner.kernels.dense import compile_dense
from flame_rl.learner.training.choose import network_of
from flame_rl.modules.layers import Activation, Dense
from flame_rl.modules.recurrent import GRU


def computed_by(stack: nn.Module, x: torch.Tensor, slope: torch.Tensor) -> list[np.ndarray]:
    """Outputs, and gradients for the inputs and all parameters."""
    own = x.clone().requires_grad_()
    outputs = stack(own)
    (outputs * slope).sum().backward()
    parameters = [parameter.grad for parameter in stack.parameters()]
    return [each.detach().numpy() for each in (outputs, own.grad, *parameters)]


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


def test_what_would_give_wrong_numbers_is_refused():
    stack = nn.Sequential(Dense(4, 8), Activation("silu"))
    compile_dense(stack)
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match="5 numbers for a dense layer that takes 4"):
        stack(torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        between = stack[0](x)
        outputs = stack[1](between)
        between.relu_()
        outputs.sum().backward()
    (slope,) = torch.autograd.grad(stack(x.requires_grad_()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_not_a_number_stays_one():
    stack = nn.Sequential(Dense(4, 3), Activation("relu"), Dense(3, 2))
    compile_dense(stack)
    outputs = stack(torch.tensor([[0.0, 1.0, float("nan"), 2.0], [0.0, 1.0, 2.0, 3.0]]))
    assert outputs.isnan().tolist() == [[True, True], [False, False]]


def test_other_types_and_activations_are_torchs():
    stack = nn.Sequential(Dense(4, 8), Activation("elu"))
    compile_dense(stack)
    x = torch.randn(5, 4)
    assert torch.equal(stack[1](x), nn.functional.elu(x))
    assert stack.double()(x.double()).dtype == torch.double


def test_networks_with_a_memory_use_them_and_their_copies_have_weights_of_their_own():
    torch.manual_seed(0)
    module = nn.Sequential(Dense(4, 8), Activation("tanh"), GRU(8, 8), Dense(8, 2))
    x = torch.randn(6, 3, 4)
    plain = module(x)
    network_of(module)
    compiled = module(x)
    assert type(compiled.grad_fn).__name__ == "_LinearBackward"
    np.testing.assert_allclose(compiled.detach(), plain.detach(), atol=1e-5)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other[0].weight.zero_(), other[0].bias.zero_()
    assert torch.equal(module(x), compiled)
    assert not torch.equal(other(x), compiled)
