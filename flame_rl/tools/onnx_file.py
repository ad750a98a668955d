"""Export an acting policy as an ONNX file, which runs without this package and without torch.

The graph is small, so it is written node by node; it computes `ActingPolicy.forward` in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flame_rl.actor.policy.acting import ActingPolicy
from flame_rl.actor.policy.layers import OBSERVATION_CLIP, ROW_BLOCK
from flame_rl.system.errors import RunError
from flame_rl.system.optional import require
from flame_rl.wire.messages import Layer, PolicySnapshot

GROUP = "export"
# Versions that runtimes of 2022 and later read.
_OPSET, _IR_VERSION = 17, 8
# Greatest difference relative to the greatest output; float32 rounds at 6e-8 per operation.
_TOLERANCE = 1e-4
_CHECK_ROWS = 1024


class Graph:
    """An ONNX graph in the making: one input, nodes, and constants."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: np.ndarray | float) -> str:
        """Add a constant; returns its name."""
        name = f"constant_{len(self.constants)}"
        array = np.asarray(values)
        if array.dtype != np.int32:
            array = array.astype(np.float32)
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def apply(self, operation: str, *inputs: str, output: str | None = None) -> str:
        """Add a node; returns the name of its output."""
        output = output or f"value_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operation, inputs, [output]))
        return output


def _normalize(graph: Graph, x: str, layer: Layer) -> str:
    x = graph.apply("Sub", x, graph.constant(layer.arrays["mean"]))
    x = graph.apply("Div", x, graph.constant(layer.arrays["std"]))
    bounds = graph.constant(-OBSERVATION_CLIP), graph.constant(OBSERVATION_CLIP)
    return graph.apply("Clip", x, *bounds)


def _dense(graph: Graph, x: str, layer: Layer) -> str:
    x = graph.apply("MatMul", x, graph.constant(layer.arrays["weight"]))
    return graph.apply("Add", x, graph.constant(layer.arrays["bias"]))


# By kind of layer: adds its nodes, given the name of its input; returns the name of its output.
_LAYERS: dict[str, Callable[[Graph, str, Layer], str]] = {
    "normalize": _normalize,
    "dense": _dense,
    "tanh": lambda graph, x, layer: graph.apply("Tanh", x),
    "relu": lambda graph, x, layer: graph.apply("Relu", x),
    "silu": lambda graph, x, layer: graph.apply("Mul", x, graph.apply("Sigmoid", x)),
}
# By kind of head: the name of the network's output, and the head's arrays that are outputs, too.
_HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "categorical": ("logits", ()),
    "factored": ("logits", ("choices",)),
    "gaussian": ("mean", ("log_std",)),
}


def to_onnx(snapshot: PolicySnapshot, env_id: str) -> bytes:
    """The policy as an ONNX model.

    Its input is `observation`, float32 [batch, D], flattened as `gymnasium.spaces.flatten` does:
    normalisation is part of the graph. Its outputs are, for continuous actions, `mean`, float32
    [batch, A], where -1 and 1 are the environment's bounds, and `log_std`, float32 [A]; for one
    discrete action `logits`, float32 [batch, choices]; for F discrete actions `logits`,
    concatenated, and `choices`, int32 [F], the number of logits of each.

    Args:
        snapshot: the policy.
        env_id: stored in the model's metadata, as is the number of updates.

    Raises:
        UsageError: the package onnx is missing.
        RunError: the policy has a layer or a head that this module does not know.
    """
    onnx = require("onnx", "onnx", GROUP)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph, x = Graph(onnx), "observation"
    for kind, known in [
        *((layer.kind, _LAYERS) for layer in snapshot.layers),
        (snapshot.head.kind, _HEADS),
    ]:
        if kind not in known:
            raise RunError(f"{kind!r} cannot be exported: it is missing in tools/onnx_file.py")
    for layer in snapshot.layers:
        x = _LAYERS[layer.kind](graph, x, layer)
    name, more = _HEADS[snapshot.head.kind]
    graph.apply("Identity", x, output=name)
    policy = ActingPolicy(snapshot)
    outputs = [helper.make_tensor_value_info(name, float32, ["batch", policy.output_dim])]
    for other in more:
        array = snapshot.head.arrays[other]
        graph.apply("Identity", graph.constant(array), output=other)
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        outputs.append(helper.make_tensor_value_info(other, element, array.shape))
    observation = helper.make_tensor_value_info(
        "observation", float32, ["batch", policy.observation_dim]
    )
    made = helper.make_graph(
        graph.nodes, "policy", [observation], outputs, initializer=graph.constants
    )
    model = helper.make_model(
        made,
        producer_name="flame-rl",
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    helper.set_model_props(model, {"env_id": env_id, "updates": str(snapshot.version)})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def check_onnx(model: bytes, snapshot: PolicySnapshot) -> float:
    """Run the model beside the NumPy policy on random observations.

    Returns:
        The greatest difference of an output, relative to the greatest output.

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
    expected = policy.forward(observations)
    got, *others = session.run(None, {"observation": observations})
    difference = float(np.abs(got - expected).max() / (np.abs(expected).max() or 1.0))
    arrays = [snapshot.head.arrays[name] for name in _HEADS[snapshot.head.kind][1]]
    same = len(others) == len(arrays) and all(map(np.array_equal, others, arrays))
    # Not "greater than": what is not a number must not pass.
    good = difference <= _TOLERANCE
    if not (good and same):
        raise RunError(
            f"the exported policy differs from this one by {difference:.2g}; nothing was written. "
            "A layer in tools/onnx_file.py may not be what it is in actor/policy/layers.py"
        )
    return difference
