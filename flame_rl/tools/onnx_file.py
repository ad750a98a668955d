"""An acting policy as an ONNX file: for any runtime, without this package and without torch.

The graph is small, so it is written node by node: what `ActingPolicy.forward`
does, in float32.
"""

from __future__ import annotations

import numpy as np

from flame_rl.actor.policy.acting import ROW_BLOCK, ActingPolicy
from flame_rl.system.errors import RunError
from flame_rl.system.optional import require
from flame_rl.wire.messages import OBSERVATION_CLIP, PolicySnapshot

GROUP = "export"
# What runtimes of 2022 and later read.
_OPSET, _IR_VERSION = 17, 8
# Of the greatest output; float32 rounds at 6e-8 per operation.
_TOLERANCE = 1e-4
_CHECK_ROWS = 1024
_NODES = {"tanh": ("Tanh",), "relu": ("Relu",), "silu": ("Sigmoid", "Mul")}


def to_onnx(snapshot: PolicySnapshot, env_id: str) -> bytes:
    """The policy as an ONNX model.

    Its input is `observation`, float32 [batch, D], as the environment shows it: normalisation is
    part of the graph. Its outputs are `mean`, float32 [batch, A], and `log_std`, float32 [A], for
    continuous actions (not clipped to the environment's bounds), or `logits`, float32 [batch,
    actions].

    Args:
        snapshot: the policy.
        env_id: kept with the model, as is the number of updates.

    Raises:
        UsageError: the package onnx is missing.
    """
    onnx = require("onnx", "onnx", GROUP)
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes, constants = [], []

    def constant(name: str, values: np.ndarray | float) -> str:
        constants.append(onnx.numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def apply(operation: str, *inputs: str, output: str | None = None) -> str:
        output = output or f"value_{len(nodes)}"
        nodes.append(helper.make_node(operation, inputs, [output]))
        return output

    x = "observation"
    if snapshot.observation_mean is not None:
        x = apply("Sub", x, constant("observation_mean", snapshot.observation_mean))
        x = apply("Div", x, constant("observation_std", snapshot.observation_std))
        least, greatest = constant("least", -OBSERVATION_CLIP), constant("most", OBSERVATION_CLIP)
        x = apply("Clip", x, least, greatest)
    name = "mean" if snapshot.continuous else "logits"
    last = len(snapshot.weights) - 1
    for i, (weight, bias) in enumerate(zip(snapshot.weights, snapshot.biases, strict=True)):
        x = apply("MatMul", x, constant(f"weight_{i}", weight))
        x = apply("Add", x, constant(f"bias_{i}", bias), output=name if i == last else None)
        if i < last:
            before = x
            for operation in _NODES[snapshot.activation]:
                x = apply(operation, x, *([before] if operation == "Mul" else []))
    outputs = [helper.make_tensor_value_info(name, float32, ["batch", snapshot.action_dim])]
    if snapshot.log_std is not None:
        apply("Identity", constant("log_std_value", snapshot.log_std), output="log_std")
        outputs.append(helper.make_tensor_value_info("log_std", float32, [snapshot.action_dim]))
    observation = helper.make_tensor_value_info(
        "observation", float32, ["batch", snapshot.observation_dim]
    )
    graph = helper.make_graph(nodes, "policy", [observation], outputs, initializer=constants)
    model = helper.make_model(
        graph,
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
        RunError: it is more than float32 explains.
        UsageError: the package onnxruntime is missing.
    """
    onnxruntime = require("onnxruntime", "onnxruntime", GROUP)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    observations = generator.standard_normal((_CHECK_ROWS, snapshot.observation_dim))
    # Every other block far out, where normalised observations are clipped.
    observations *= np.where(np.arange(_CHECK_ROWS) % (2 * ROW_BLOCK) < ROW_BLOCK, 1.5, 20)[:, None]
    if snapshot.observation_mean is not None:
        observations = snapshot.observation_mean + snapshot.observation_std * observations
    observations = observations.astype(np.float32)
    expected = ActingPolicy(snapshot).forward(observations)
    got, *log_std = session.run(None, {"observation": observations})
    difference = float(np.abs(got - expected).max() / (np.abs(expected).max() or 1.0))
    # Not "greater than": what is not a number must not pass.
    good = difference <= _TOLERANCE
    if not good or (log_std and not np.array_equal(log_std[0], snapshot.log_std)):
        raise RunError(
            f"the exported policy differs from this one by {difference:.2g}; nothing was written. "
            "It may be that a layer in actor/policy/ is missing in tools/onnx_file.py"
        )
    return difference
