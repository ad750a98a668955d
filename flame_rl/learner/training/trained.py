"""A network in training: a torch module, its parameters as one array, its Adam, and a step down a
loss; and a target network, which follows it."""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from flame_rl.learner.compiled.library import library
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.network import Gradient, Network, Pass, Samples
from flame_rl.system.errors import UsageError


class TrainedNetwork:
    """A module that is updated in place.

    Attributes:
        module: a policy, a value network or a critic.
        adam: its optimiser.
        network: what computes and differentiates it.
        choose: makes the `Network` of a module; see choose.py.
    """

    def __init__(self, module: nn.Module, choose: Callable[[nn.Module], Network]) -> None:
        self.module, self.choose = module, choose
        # First, because it moves the parameters to one array.
        self.adam = Adam(flat_parameters(module))
        self.network = choose(module)

    def descend(
        self,
        forward: Pass,
        gradients: tuple[Gradient, ...],
        learning_rate: float,
        max_grad_norm: float = math.inf,
    ) -> None:
        """One step of Adam down a mean loss, given its gradients for the outputs.

        Args:
            forward: a pass of `network` through a minibatch.
            gradients: that of each sample's loss, for each output.
            learning_rate: Adam's step size.
            max_grad_norm: a gradient of a greater norm is scaled down to it.
        """
        # Of the mean; the outputs are fewer than the parameters.
        share = np.float32(1 / len(forward.outputs[0]))
        weighted = tuple(each * share for each in gradients)
        forward.backward(weighted, self.adam.gradient)
        if max_grad_norm < math.inf:
            self.adam.clip_gradient(max_grad_norm)
        self.adam.step(learning_rate)


class TargetNetwork:
    """A slower copy of a network in training, whose values are learned from (Mnih et al. 2015,
    "Human-Level Control through Deep Reinforcement Learning"). `module`: the copy. `parameters`:
    its own, float32 [P]."""

    def __init__(self, trained: TrainedNetwork) -> None:
        self.module = copy.deepcopy(trained.module)
        self.parameters = flat_parameters(self.module)
        self._network = trained.choose(self.module)
        self._trained = trained

    def output(self, samples: Samples) -> np.ndarray:
        """The network's only output."""
        (output,) = self._network.outputs(samples)
        return output

    def follow(self, tau: float) -> None:
        """target <- (1 - tau) target + tau network (Lillicrap et al. 2016, "Continuous Control with
        Deep Reinforcement Learning", algorithm 1); tau 1 copies."""
        follow(self.parameters, self._trained.adam.parameters, tau)


def follow(parameters: np.ndarray, others: np.ndarray, tau: float) -> None:
    """parameters += tau (others - parameters), in place, on arrays float32 [P]; tau 1 copies."""
    compiled = library()
    if tau == 1:
        parameters[:] = others
    elif compiled is None:
        parameters += (others - parameters) * np.float32(tau)
    else:
        compiled.follow(parameters, others, tau, parameters.size)


def flat_parameters(module: nn.Module) -> np.ndarray:
    """All parameters in order, each flat, as one array float32 [P]; the module's parameters become
    views of it. Raises UsageError for parameters of another type or device, and for none."""
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise UsageError(f"model.py: a function returned {kind} and no network, a torch module")
    if not (parameters := list(module.parameters())):
        raise UsageError(f"model.py: {kind} has no parameters to train; give it a layer with some")
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise UsageError(
                f"model.py: {name} of {kind} is {parameter.dtype} on {parameter.device}, and "
                "networks are made in float32 on the CPU; make it so (--device moves it)"
            )
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    views = flat.split([parameter.numel() for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view.view_as(parameter)
    return flat.numpy()
