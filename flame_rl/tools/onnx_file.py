"""Export a policy as an ONNX file, by torch's exporter, and compare it with the NumPy policy."""

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from flame_rl.actor.environments.masks import ACTION_MASK
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.heads import LOG_STD_RANGE
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.system.errors import RunError
from flame_rl.wire.masks import ACTION_MASKS, FORBIDDEN_LOGIT, pack_masks
from flame_rl.wire.messages import Layer, PolicySnapshot

if TYPE_CHECKING:
    from flame_rl.learner.learner import Learner

_TOLERANCE = 1e-4  # relative to the greatest output; float32 rounds at 6e-8 per operation
_CHECK_ROWS = 1024


class ExportedPolicy(nn.Module):
    """A policy as other programs use it: [B, D] -> `outputs`, by the names of docs/training.md."""

    def __init__(
        self, policy: nn.Module, snapshot: PolicySnapshot, first: nn.Module | None = None
    ) -> None:
        """`policy` outputs what its last layer does, `snapshot` is its export for actors, and
        `first` normalises observations before. Raises RunError if the policy has a memory."""
        super().__init__()
        for layer in snapshot.layers:
            if LAYERS[layer.kind].state is not None:
                raise RunError(f"{layer.kind!r} cannot be exported: it remembers an episode")
        network = [policy]
        if snapshot.head.kind.startswith("epsilon_greedy"):
            # The last layer for actors gives the values of actions, whatever the module predicts.
            weight, bias = (torch.tensor(snapshot.layers[-1].arrays[n]) for n in ("weight", "bias"))
            last = nn.Linear(*weight.shape)
            last.load_state_dict({"weight": weight.T, "bias": bias})
            network = [policy.normalizer, *policy.network[:-1], last]
        self.network = nn.Sequential(*([] if first is None else [first]), *network)
        self.snapshot = snapshot
        output = torch.zeros(1, ActingPolicy(snapshot).output_dim)
        self.outputs = [*head_outputs(snapshot.head, output), *snapshot.head.arrays]

    @classmethod
    def of_learner(cls, learner: Learner) -> ExportedPolicy:
        """The latest policy of a learner."""
        parts = learner.parts
        policy = parts["policy"] if "policy" in parts else parts["shared"].policy
        return cls(policy, learner.snapshot(), parts.get("normalizer"))

    def forward(self, observation: Tensor, action_mask: Tensor | None = None) -> list[Tensor]:
        head = self.snapshot.head
        outputs = head_outputs(head, self.network(observation), action_mask)
        return [*outputs.values(), *map(torch.from_numpy, head.arrays.values())]


def head_outputs(head: Layer, output: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The outputs by name, but for the head's arrays, given the network's output, [B, width].
    Logits and values of what the mask forbids are `FORBIDDEN_LOGIT`."""

    def masked(values: Tensor) -> Tensor:
        return values if mask is None else values.where(mask > 0, FORBIDDEN_LOGIT)

    match head.kind:
        case "categorical" | "factored":
            return {"logits": masked(output)}
        case "gaussian":
            return {"mean": output}
        case "squashed_gaussian":
            width = int(output.shape[1]) // 2
            mean, log_std = output[:, :width], output[:, width:].clamp(*LOG_STD_RANGE)
            return {"mean": mean, "log_std": log_std, "action": mean.tanh()}
        case "noisy":
            return {"action": output.clamp(-1, 1)}
        case "epsilon_greedy":
            values = masked(output)
            return {"values": values, "action": values.argmax(dim=1)}
        case "epsilon_greedy_distribution":
            support = torch.from_numpy(head.arrays["support"]).to(output)
            logits = output.unflatten(1, (-1, len(support)))
            values = masked(logits.softmax(dim=2) @ support)
            return {"logits": logits, "values": values, "action": values.argmax(dim=1)}
    raise RunError(f"{head.kind!r} cannot be exported: no head of flame_rl/tools/onnx_file.py")


def to_onnx(policy: ExportedPolicy, env_id: str, choices: tuple[int, ...] = ()) -> bytes:
    """The policy as an ONNX model, whose metadata has `env_id` and the number of updates; `choices`
    are those of each factor where the environment has masks, else empty."""
    inputs = {"observation": torch.zeros(2, ActingPolicy(policy.snapshot).observation_dim)}
    if choices:
        inputs[ACTION_MASK] = torch.ones(2, sum(choices), dtype=torch.int8)
    file, rows = io.BytesIO(), {*inputs, *policy.outputs} - policy.snapshot.head.arrays.keys()
    with warnings.catch_warnings():
        # The exporter by tracing is deprecated; its successor takes twenty times as long.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            policy,
            tuple(inputs.values()),
            file,
            input_names=list(inputs),
            output_names=policy.outputs,
            dynamic_axes={name: {0: "batch"} for name in rows},
            opset_version=17,  # which runtimes of 2022 and later read
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    updates = str(policy.snapshot.version)
    onnx.helper.set_model_props(model, {"env_id": env_id, "updates": updates})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def check_onnx(model: bytes, snapshot: PolicySnapshot, choices: tuple[int, ...] = ()) -> float:
    """Run the model beside the NumPy policy on random observations and masks; `choices` is as in
    `to_onnx`. Returns the greatest difference of a number, relative to the greatest number of its
    output. Raises RunError if it is more than float32 explains."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    policy, generator = ActingPolicy(snapshot), np.random.default_rng(0)
    observations = generator.standard_normal((_CHECK_ROWS, policy.observation_dim))
    # Every other block lies far out, where normalised observations are clipped.
    observations *= np.where(np.arange(_CHECK_ROWS) % (2 * ROW_BLOCK) < ROW_BLOCK, 1.5, 20)[:, None]
    first = snapshot.layers[0]
    if first.kind == "normalize":
        observations = first.arrays["mean"] + first.arrays["std"] * observations
    inputs, mask, seen = {"observation": observations.astype(np.float32)}, None, {}
    if choices:
        masks = generator.integers(0, 2, (_CHECK_ROWS, sum(choices)), np.int8)
        # At least one choice of each factor.
        masks[:, np.cumsum(choices) - choices + generator.integers(0, choices)] = 1
        inputs[ACTION_MASK], seen[ACTION_MASKS] = masks, pack_masks(masks)
        mask = torch.from_numpy(masks)
    output = torch.from_numpy(policy.forward(inputs["observation"]))
    expected = {n: each.numpy() for n, each in head_outputs(snapshot.head, output, mask).items()}
    if "action" in expected:
        expected["action"] = policy.act(inputs["observation"], None, seen=seen)
    names = [each.name for each in session.get_outputs()]
    got = dict(zip(names, session.run(None, inputs), strict=True))
    difference = _difference(got, expected, snapshot.head.arrays)
    # Not "greater than": what is not a number must not pass.
    if not difference <= _TOLERANCE:
        text = f"the exported policy differs from this one by {difference:.2g}; nothing was written"
        text += ". A layer's torch module may not compute what its class in flame_rl/nets/ does"
        raise RunError(text)
    return difference


def _difference(
    got: dict[str, np.ndarray], expected: dict[str, np.ndarray], arrays: dict[str, np.ndarray]
) -> float:
    """The greatest difference, relative to its output; infinite with other outputs or arrays."""
    same = (np.array_equal(got.get(name), array) for name, array in arrays.items())
    if got.keys() != expected.keys() | arrays.keys() or not all(same):
        return math.inf
    differences = []
    for name, right in expected.items():
        left = got[name]
        if right.dtype.kind == "i":
            # If two actions have the same value but for rounding, either will do.
            rows, values = np.arange(len(left)), expected["values"]
            left, right = values[rows, left], values[rows, right]
        left, right = (
            np.where(each == np.float32(FORBIDDEN_LOGIT), 0, each)
            for each in (left, right.astype(np.float32))
        )
        means = "support" in arrays and name != "logits"  # sums of returns may cancel out
        greatest = np.abs(arrays["support"] if means else right).max()
        differences.append(np.abs(left - right).max() / (greatest or 1.0))
    return float(np.max(differences))  # unlike max, np.max does not lose what is not a number
