"""Losses in torch: their gradients, and those of the built-in losses of on-policy algorithms
against them. tests/learner/test_off_policy.py compares those of action values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy.losses import policy_gradient_loss, value_loss
from flame_rl.learner.training.torch_loss import torch_loss

ROWS, CLIP, C = 200, 0.2, 0.3
RNG = np.random.default_rng(0)
SAMPLES = {
    "advantages": RNG.standard_normal(ROWS),
    "log_probs": RNG.standard_normal(ROWS),
    "targets": RNG.standard_normal(ROWS),
    "scale": np.full(ROWS, 7.0),
    "actions": RNG.integers(0, 3, ROWS).astype(np.int32),
}
# Half of the ratios are beyond the clip range.
LOG_PROBS = SAMPLES["log_probs"] + RNG.uniform(-2 * CLIP, 2 * CLIP, ROWS)
ENTROPIES = RNG.uniform(0, 1, ROWS)


@torch_loss
def policy_gradient(samples, log_probs, entropies):
    return {
        "loss": -log_probs * samples["advantages"] - C * entropies,
        "entropy": entropies,
        "kl": kl(samples, log_probs),
    }


@torch_loss
def clipped(samples, log_probs, entropies):
    ratio = (log_probs - samples["log_probs"]).exp()
    pair = ratio, ratio.clamp(1 - CLIP, 1 + CLIP)
    smaller = torch.minimum(*(each * samples["advantages"] for each in pair))
    return {
        "loss": -smaller - C * entropies,
        "entropy": entropies,
        "kl": kl(samples, log_probs),
    }


def kl(samples: dict[str, Tensor], log_probs: Tensor) -> Tensor:
    log_ratio = log_probs - samples["log_probs"]
    return log_ratio.exp() - 1 - log_ratio


@torch_loss
def half_squares(samples, values):
    return nn.functional.mse_loss(values / 7, samples["targets"] / 7, reduction="none") / 2


@pytest.mark.parametrize(
    ("built_in", "by_torch", "outputs"),
    [
        (policy_gradient_loss(C), policy_gradient, (LOG_PROBS, ENTROPIES)),
        (clipped_loss(CLIP, C), clipped, (LOG_PROBS, ENTROPIES)),
        (value_loss, half_squares, (RNG.standard_normal(ROWS),)),
    ],
)
def test_built_in_losses(built_in, by_torch, outputs):
    ours, our_gradients = built_in(SAMPLES, *outputs)
    theirs, gradients = by_torch(SAMPLES, *outputs)
    assert ours.keys() == theirs.keys()
    for name, number in theirs.items():
        np.testing.assert_allclose(ours[name], number, rtol=1e-9, atol=1e-12, err_msg=name)
    for own, other in zip(our_gradients, gradients, strict=True):
        np.testing.assert_allclose(np.broadcast_to(own, ROWS), other, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_the_gradients_of_several_outputs():
    """Within a block in which torch differentiates nothing, and of an output that is not used."""

    @torch_loss
    def loss(samples, first, second, unused):
        assert samples["actions"].dtype == torch.int64
        value = first.gather(1, samples["actions"][:, None])[:, 0]
        return {"loss": value * second.sum(dim=(1, 2)), "value": value}

    shapes = (ROWS, 3), (ROWS, 2, 5), (ROWS,)
    outputs = tuple(RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    before = [output.copy() for output in outputs]
    numbers, gradients = loss(SAMPLES, *outputs)
    value = outputs[0][np.arange(ROWS), SAMPLES["actions"]]
    sums = outputs[1].sum(axis=(1, 2))
    np.testing.assert_array_equal(numbers["value"], value)
    np.testing.assert_allclose(numbers["loss"], value * sums, rtol=1e-4, atol=1e-5)
    expected = [np.zeros(shape) for shape in shapes]
    expected[0][np.arange(ROWS), SAMPLES["actions"]] = sums
    expected[1][:] = value[:, None, None]
    for gradient, wanted, output, old in zip(gradients, expected, outputs, before, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)
        assert gradient.dtype == np.float32
        np.testing.assert_array_equal(output, old)
    assert {number.dtype for number in numbers.values()} == {np.dtype(np.float32)}


def test_importance_weights():
    """The function does not get them, so that it cannot multiply by them again."""

    @torch_loss
    def loss(samples, values):
        assert "weights" not in samples
        return {"loss": values**2, "value": values}

    weights = RNG.uniform(0, 1, ROWS)
    numbers, (gradient,) = loss({"weights": weights}, ENTROPIES)
    np.testing.assert_allclose(numbers["loss"], weights * ENTROPIES**2)
    np.testing.assert_array_equal(numbers["value"], ENTROPIES)
    np.testing.assert_allclose(gradient, weights * 2 * ENTROPIES)


@pytest.mark.parametrize("wrong", [lambda x: x.mean(), lambda x: x[:, None], lambda x: x[1:]])
def test_a_loss_is_one_number_for_each_sample(wrong):
    @torch_loss
    def mean_loss(samples, values):
        return wrong(values)

    with pytest.raises(ValueError, match=r"mean_loss: a loss of shape .* for 200 samples; return"):
        mean_loss({}, ENTROPIES)
