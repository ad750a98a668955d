"""A network in training: a torch module, its Adam, and steps down any loss."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from flame_rl.learner.adam import Adam
from flame_rl.learner.slices import accumulate_gradients, without_gradient

# Sums per-step numbers, [B'] -> scalar, and divides by the minibatch's size: the mean, or a slice's
# share of it, because a large minibatch is differentiated slice by slice.
Mean = Callable[[Tensor], Tensor]
# Computes numbers by name for some steps, int64 [B']; "loss" is the one that is differentiated.
Loss = Callable[[Tensor, Mean], dict[str, Tensor]]


class TrainedNetwork:
    """A policy, a value network or a critic, updated in place.

    Attributes:
        module: the network.
        adam: its optimiser.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.adam = Adam(module)

    def step(
        self,
        steps: Tensor,
        loss: Loss,
        learning_rate: float,
        max_grad_norm: float,
        unless: Callable[[dict[str, float]], bool] = lambda numbers: False,
    ) -> dict[str, float]:
        """One step of Adam down the loss.

        Args:
            steps: int64 [B], the minibatch.
            loss: see `Loss`.
            learning_rate: Adam's step size.
            max_grad_norm: a gradient of a greater norm is scaled down to it.
            unless: called with the result; if it returns True, the network is not changed.

        Returns:
            The loss's numbers before the step, "gradient_norm" before clipping, and "taken", 1 or
            0: whether the network was changed.
        """

        def mean(values: Tensor) -> Tensor:
            return values.sum() / len(steps)

        self.adam.zero_gradient()
        numbers = accumulate_gradients(self.adam.parameters, steps, lambda part: loss(part, mean))
        numbers["gradient_norm"] = self.adam.clip_gradient(max_grad_norm)
        numbers["taken"] = float(not unless(numbers))
        if numbers["taken"]:
            self.adam.step(learning_rate)
        return numbers

    def evaluate(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Evaluate the function on all rows without a gradient: [N, ...] -> float32 [N]."""
        return without_gradient(function, rows)
