"""Gradient steps on the minibatches of an epoch: all of it by compiled code where there is some,
otherwise minibatch by minibatch."""

from __future__ import annotations

from collections.abc import Callable

from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.epoch import Epoch, StepConfig
from flame_rl.learner.training.network import Loss, NativeLoss, Network, Samples
from flame_rl.learner.training.slices import mean_gradient, on_all_cores


def descend(
    network: Network, adam: Adam, epoch: Epoch, loss: Loss, config: StepConfig
) -> list[dict[str, float]]:
    """Train a network on a loss.

    Returns:
        For each minibatch, up to one that exceeded the KL limit, the loss's numbers by name, means
        over its steps, and "gradient_norm".
    """
    if runs_alone(network, epoch, loss):
        return network.run_epoch(loss, adam, epoch, config)

    def gradient_of(minibatch: Samples) -> dict[str, float]:
        return mean_gradient(network, minibatch, loss, adam.gradient)

    return descend_by(gradient_of, adam, epoch, config)


def runs_alone(network: Network, epoch: Epoch, loss: Loss) -> bool:
    """Whether compiled code runs the epoch without Python; not where minibatches keep all cores
    busy, and one core would take longer."""
    compiled = isinstance(network, CompiledNetwork) and isinstance(loss, NativeLoss)
    return compiled and not on_all_cores(network, epoch.largest)


def descend_by(
    gradient_of: Callable[[Samples], dict[str, float]], adam: Adam, epoch: Epoch, config: StepConfig
) -> list[dict[str, float]]:
    """As `descend`, given a function that writes a minibatch's gradient to `adam.gradient` and
    returns its numbers."""
    steps = []
    for minibatch in epoch.minibatches():
        numbers = gradient_of(minibatch)
        numbers["gradient_norm"] = adam.clip_gradient(config.max_grad_norm)
        steps.append(numbers)
        if config.exceeds_kl(numbers):
            break
        adam.step(config.learning_rate)
    return steps
