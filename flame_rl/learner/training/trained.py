"""A network in training: a torch module, its parameters as one array, its Adam, and a step down a
loss; and its target network, the slower copy whose values are learned from (Mnih et al. 2015,
"Human-Level Control through Deep Reinforcement Learning")."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from flame_rl.learner.state import Stateful
from flame_rl.learner.training.adam import Adam, follow
from flame_rl.learner.training.network import Gradient, Network, Pass, Samples
from flame_rl.system.errors import UsageError


class TrainedNetwork:
    """A policy, a value network or a critic, updated in place.

    Attributes:
        module: the network.
        adam: its optimiser.
        network: computes and differentiates the module.
        choose: makes the `Network` of a module.
    """

    def __init__(self, module: nn.Module, choose: Callable[[nn.Module], Network]) -> None:
        """`choose` makes `network`; see choose.py."""
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


# Puts a new module in training; algorithms with a replay memory make their networks with it.
Train = Callable[[nn.Module], TrainedNetwork]


class TargetNetwork:
    """A copy that follows a network in training.

    Attributes:
        module: the copy.
        parameters: its own, float32 [P].
    """

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


def flat_parameters(module: nn.Module) -> np.ndarray:
    """All parameters in order, each flat, as one array float32 [P]; the module's parameters become
    views of it. Raises UsageError for parameters of another type."""
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise UsageError(
                f"model.py: {name} of {type(module).__name__} is {parameter.dtype}, and networks "
                "are trained in float32; make it with dtype=torch.float32"
            )
    parameters = list(module.parameters())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    views = flat.split([parameter.numel() for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view.view_as(parameter)
    return flat.numpy()


class _ModuleState:
    """The tensors of a torch module as a `Stateful`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._module.state_dict().items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        self._module.load_state_dict(tensors)


def state_of(part: Stateful | nn.Module) -> Stateful:
    """The part itself, or the tensors of a module as one; its arrays are views of them."""
    return _ModuleState(part) if isinstance(part, nn.Module) else part


def modules_in(parts: dict[str, Stateful | nn.Module]) -> dict[str, nn.Module]:
    """The modules among the parts."""
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}


def refuse_common_parameters(modules: dict[str, nn.Module]) -> None:
    """Raise UsageError where a parameter belongs to two networks: only one would train it."""
    owners: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        for of, parameter in module.named_parameters():
            owner = owners.setdefault(parameter, name)
            if owner != name:
                raise UsageError(
                    f"model.py: the networks {owner!r} and {name!r} have the parameter {of} in "
                    "common, and each is trained by itself; add --shared-torso, or give each its "
                    "own layers"
                )
