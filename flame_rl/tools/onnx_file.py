"""Export an acting policy as an ONNX file, which runs without this package and without torch.

The graph is small, so it is written node by node; it computes `ActingPolicy.forward` in float32,
and the action without noise where that is not the network's output or its argmax at once.
"""

from __future__ import annotations

import math

import numpy as np

from flame_rl.actor.environments.masks import ACTION_MASK
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.inputs import InputsLayer
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.nets.onnx_graph import Graph
from flame_rl.system.errors import RunError
from flame_rl.system.optional import require
from flame_rl.wire.masks import ACTION_MASKS, FORBIDDEN_LOGIT, pack_masks
from flame_rl.wire.messages import PolicySnapshot

GROUP = "export"
# Versions that runtimes of 2022 and later read.
_OPSET, _IR_VERSION = 17, 8
# Greatest difference relative to the greatest output; float32 rounds at 6e-8 per operation.
_TOLERANCE = 1e-4
_CHECK_ROWS = 1024

Arrays = dict[str, np.ndarray]


def to_onnx(snapshot: PolicySnapshot, env_id: str, masked: tuple[int, ...] = ()) -> bytes:
    """The policy as an ONNX model.

    Its input is `observation`, float32 [batch, D], flattened as `gymnasium.spaces.flatten` does,
    pictures too, with their channels last: normalisation is part of the graph. A policy that was
    trained with masks has another input, `action_mask`, int8 [batch, choices], 1 for what is
    allowed; logits and values of the rest are -1e30. Its outputs, float32 unless another type is
    given, depend on the head; the arrays of the head are among them. Of continuous actions, -1 and
    1 are the environment's bounds.

    categorical: `logits` [batch, choices].
    factored: `logits`, those of F choices concatenated, and `choices`, int32 [F], the number of
        logits of each.
    gaussian: `mean` [batch, A] and `log_std` [A].
    epsilon_greedy: `values` [batch, A], `action`, int64 [batch], the one of the greatest value, and
        `epsilon` and `repeat` [1].
    epsilon_greedy_distribution: the same, `logits` [batch, A, atoms] and `support` [atoms].
    squashed_gaussian: `mean` and `log_std` [batch, A] before the tanh, and `action` [batch, A], the
        tanh of the mean.
    noisy: `action` [batch, A] without noise, `std` [A] and `theta` [1].

    Args:
        snapshot: the policy.
        env_id: stored in the model's metadata, as is the number of updates.
        masked: the number of choices of each factor, where the environment has masks; else empty.

    Raises:
        UsageError: the package onnx is missing.
        RunError: the policy has a memory.
    """
    onnx = require("onnx", "onnx", GROUP)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    policy, arrays = ActingPolicy(snapshot), snapshot.head.arrays
    graph, values = Graph(onnx), ["observation"]
    for layer in snapshot.layers:
        kind = LAYERS[layer.kind]
        if kind.state is not None:
            raise RunError(
                f"{layer.kind!r} cannot be exported: it remembers an episode, and the file's only "
                "input is one observation"
            )
        if layer.input is None:
            values = [_side_by_side(graph, values)]
        place, made = layer.input or 0, kind(**layer.arrays)
        values[place] = made.to_onnx(graph, values[place])
        if isinstance(made, InputsLayer):
            values = made.divide_in_onnx(graph, values[place])
    inputs = [
        helper.make_tensor_value_info("observation", float32, ["batch", policy.observation_dim])
    ]
    allowed = None
    if masked:
        shape = ["batch", sum(masked)]
        inputs.append(helper.make_tensor_value_info(ACTION_MASK, onnx.TensorProto.INT8, shape))
        allowed = graph.apply("Cast", ACTION_MASK, to=onnx.TensorProto.BOOL)
    policy.head.to_onnx(graph, _side_by_side(graph, values), allowed)
    outputs = []
    for name, rows in policy.head.onnx_outputs(np.zeros((1, policy.output_dim))).items():
        element = float32 if rows.dtype.kind == "f" else onnx.TensorProto.INT64
        outputs.append(helper.make_tensor_value_info(name, element, ["batch", *rows.shape[1:]]))
    for name, array in arrays.items():
        graph.apply("Identity", graph.constant(array), output=name)
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        outputs.append(helper.make_tensor_value_info(name, element, array.shape))
    whole = helper.make_graph(graph.nodes, "policy", inputs, outputs, initializer=graph.constants)
    model = helper.make_model(
        whole,
        producer_name="flame-rl",
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    helper.set_model_props(model, {"env_id": env_id, "updates": str(snapshot.version)})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _side_by_side(graph: Graph, values: list[str]) -> str:
    return values[0] if len(values) == 1 else graph.apply("Concat", *values, axis=-1)


def check_onnx(model: bytes, snapshot: PolicySnapshot, masked: tuple[int, ...] = ()) -> float:
    """Run the model beside the NumPy policy on random observations, and masks; `masked` is as in
    `to_onnx`.

    Returns:
        The greatest difference of a number, relative to the greatest number of its output.

    Raises:
        RunError: the difference is more than float32 explains.
        UsageError: the package onnxruntime is missing.
    """
    onnxruntime = require("onnxruntime", "onnxruntime", GROUP)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    policy = ActingPolicy(snapshot)
    generator = np.random.default_rng(0)
    observations = generator.standard_normal((_CHECK_ROWS, policy.observation_dim))
    # Every other block lies far out, where normalised observations are clipped.
    observations *= np.where(np.arange(_CHECK_ROWS) % (2 * ROW_BLOCK) < ROW_BLOCK, 1.5, 20)[:, None]
    first = snapshot.layers[0]
    if first.kind == "normalize":
        observations = first.arrays["mean"] + first.arrays["std"] * observations
    observations = observations.astype(np.float32)
    arrays = snapshot.head.arrays
    inputs, seen = {"observation": observations}, {}
    if masked:
        masks = _random_masks(masked, generator)
        inputs[ACTION_MASK], seen[ACTION_MASKS] = masks, pack_masks(masks)
    expected = policy.head.onnx_outputs(policy.forward(observations), seen)
    names = [output.name for output in session.get_outputs()]
    got = dict(zip(names, session.run(None, inputs), strict=True))
    difference = _difference(got, expected, arrays)
    # Not "greater than": what is not a number must not pass.
    if not difference <= _TOLERANCE:
        raise RunError(
            f"the exported policy differs from this one by {difference:.2g}; nothing was written. "
            "The `to_onnx` of a layer or head in flame_rl/nets/ may not be what acts"
        )
    return difference


def _random_masks(choices: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """int8 [B, A], with one choice of each factor or more."""
    masks = generator.integers(0, 2, (_CHECK_ROWS, sum(choices)), np.int8)
    first = np.cumsum(choices) - choices
    masks[:, first + generator.integers(0, choices)] = 1
    return masks


def _difference(got: Arrays, expected: Arrays, arrays: Arrays) -> float:
    """The greatest difference of a number, relative to the greatest number of its output; infinite
    if the outputs are not the expected ones and the head's arrays."""
    if got.keys() != {*expected, *arrays} or any(
        not np.array_equal(got[name], array) for name, array in arrays.items()
    ):
        return math.inf
    differences = []
    for name, right in expected.items():
        left = got[name]
        if left.shape != right.shape:
            return math.inf
        forbidden = right == FORBIDDEN_LOGIT
        if (left[forbidden] != np.float32(FORBIDDEN_LOGIT)).any():
            return math.inf
        left, right = np.where(forbidden, 0, left), np.where(forbidden, 0, right)
        greatest = np.abs(right).max()
        if right.dtype.kind == "i":
            # If two actions have the same value but for rounding, either will do.
            values = expected["values"]
            left, right = values[np.arange(len(left)), left], values.max(axis=1)
            greatest = np.abs(right).max()
        if "support" in arrays and name != "logits":
            # A mean of returns that cancel out is as exact as these returns are.
            greatest = np.abs(arrays["support"]).max()
        differences.append(np.abs(left - right).max() / (greatest or 1.0))
    # Unlike max, np.max does not lose what is not a number.
    return float(np.max(differences))


def output_names(snapshot: PolicySnapshot) -> list[str]:
    """The names of the model's outputs, in order."""
    policy = ActingPolicy(snapshot)
    return [*policy.head.onnx_outputs(np.zeros((1, policy.output_dim))), *snapshot.head.arrays]
