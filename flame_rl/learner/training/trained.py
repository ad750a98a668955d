"""A network in training: a torch module, its parameters as one array, their Adam, and a step down a
loss; and a target network, which follows it."""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from flame_rl.learner.compiled.library import library
from flame_rl.learner.state import count_in
from flame_rl.learner.training.network import Gradient, Network, Pass, Samples
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import end_if_stopped

# Adam's beta1, beta2 and epsilon (Kingma and Ba 2015, algorithm 1).
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# Adam's moments, of gradients and of their squares, below these change no parameter, and become 0:
# those of a unit that never fires would decay to subnormal numbers, slow on some processors.
UNDERFLOW = 1e-20, 1e-36


class Adam:
    """Updates parameters in place (Kingma and Ba 2015, algorithm 1). All lie in one flat array, so
    that a step is one call. Not torch.optim.Adam, because making one imports torch's compiler,
    which takes longer than importing torch, and its state is not arrays by name.

    Attributes:
        parameters: float32 [P]; those of a module, see `flat_parameters`.
        steps: steps so far.
        gradient: float32 [P], what the next step descends; after a compiled epoch, a sum
            over the samples, not clipped.
        moments: sums of gradients and of their squares, with weights that fall by beta at each
            step: the paper's m and v, but for the factor 1 - beta.
    """

    def __init__(self, parameters: np.ndarray) -> None:
        self.parameters = parameters
        self.gradient = np.zeros_like(self.parameters)
        self.moments = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self.steps = 0

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; returns its norm before that."""
        length = math.sqrt(np.dot(self.gradient, self.gradient))
        if length > max_norm:
            self.gradient *= max_norm / length
        return length

    def step(self, learning_rate: float) -> None:
        """One step down the gradient. Raises Interrupted if the user asks to stop."""
        end_if_stopped()
        (factors,) = self.factors(1, learning_rate)
        self.steps += 1
        if (compiled := library()) is not None:
            size = self.parameters.size
            compiled.adam(self.parameters, self.gradient, *self.moments, 1.0, *factors, size)
            return
        epsilon, rate = map(np.float32, factors)
        gains = self.gradient, np.square(self.gradient)
        betas = BETA1, BETA2
        for moment, beta, new, least in zip(self.moments, betas, gains, UNDERFLOW, strict=True):
            moment *= np.float32(beta)
            moment += new
            moment[np.abs(moment) < least] = 0
        self.parameters -= self.moments[0] / (np.sqrt(self.moments[1]) + epsilon) * rate

    def factors(self, count: int, learning_rate: float) -> list[tuple[float, float]]:
        """Epsilon and the step size of the next `count` steps, as the moments need them: times
        these factors, they are the paper's corrected moments, m-hat and v-hat."""
        factors = []
        for step in range(self.steps + 1, self.steps + count + 1):
            factor1 = (1 - BETA1) / (1 - BETA1**step)
            root2 = math.sqrt((1 - BETA2) / (1 - BETA2**step))
            # A step size beyond float32 becomes infinite, and the update is refused.
            factors.append((EPSILON / root2, learning_rate * factor1 / root2))
        return factors

    def state_dict(self) -> dict[str, np.ndarray]:
        """Both moments and the number of steps; see `Stateful`."""
        return {"first": self.moments[0], "second": self.moments[1], "steps": np.array(self.steps)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """See `Stateful`. Raises KeyError or ValueError if it does not fit."""
        for name in ("first", "second"):
            if (state[name].shape, state[name].dtype) != (self.parameters.shape, np.float32):
                raise ValueError(f"{name}: {state[name].shape} of {state[name].dtype}")
        for moment, name in zip(self.moments, ("first", "second"), strict=True):
            moment[:] = state[name]
        self.steps = count_in(state, "steps")


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
        """One step of Adam down a mean loss, given a pass of `network` through a minibatch and the
        gradients of each sample's loss for each output. A gradient of a greater norm than
        `max_grad_norm` is scaled down to it."""
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
