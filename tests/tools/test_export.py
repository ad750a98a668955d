"""ONNX files of policies, compared with the torch modules that they came from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl import Trainer
from flame_rl.modules.layers import LayerNorm
from flame_rl.modules.recurrent import GRU
from flame_rl.nets import layers
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.onnx_graph import Graph
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError
from flame_rl.tools import onnx_file as export
from flame_rl.wire.messages import Layer
from tests.helpers import ROOT, run_here, run_main, snapshot_with, spec_of

REASON = "the optional packages are not installed (uv run --group export pytest)"
onnx = pytest.importorskip("onnx", reason=REASON)
onnxruntime = pytest.importorskip("onnxruntime", reason=REASON)


def make_policy(
    continuous=True, activation="tanh", normalize=True, sizes=(64, 64), action_space=None
):
    spec = spec_of(5, 3, continuous, env_id="Some-v0")
    if action_space is not None:
        spec = dataclasses.replace(spec, action_space=action_space)
    config = TrainConfig(
        activation=activation, normalize_observations=normalize, hidden_sizes=sizes
    )
    torch.manual_seed(0)
    policy = model.policy(spec, config)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    if normalize:
        policy.normalizer.set(np.array([0.0, 5, -5, 100, 0]), np.array([1.0, 2, 0.1, 30, 1e-4]))
    return policy


@pytest.mark.parametrize("sizes", [(), (7,), (64, 64)])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("continuous", [True, False])
def test_the_file_computes_what_torch_does(continuous, activation, normalize, sizes):
    policy = make_policy(continuous, activation, normalize, sizes)
    snapshot = policy.snapshot()
    file = export.to_onnx(snapshot, "Some-v0")
    assert export.check_onnx(file, snapshot) < 1e-5

    session = onnxruntime.InferenceSession(file)
    (asked,) = session.get_inputs()
    assert (asked.name, asked.shape, asked.type) == ("observation", ["batch", 5], "tensor(float)")
    assert session.get_modelmeta().custom_metadata_map == {"env_id": "Some-v0", "updates": "0"}
    observation = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    # The clip is part of the policy.
    observation[3:] *= 100
    for batch in (observation, observation[:1]):
        with torch.no_grad():
            expected = policy(torch.from_numpy(batch))
        names = [output.name for output in session.get_outputs()]
        answers = dict(zip(names, session.run(names, {"observation": batch}), strict=True))
        if continuous:
            assert set(answers) == {"mean", "log_std"}
            np.testing.assert_allclose(answers["mean"], expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(answers["log_std"], policy.log_std.detach())
        else:
            assert set(answers) == {"logits"}
            np.testing.assert_allclose(answers["logits"], expected, rtol=1e-4, atol=1e-4)


def test_the_file_has_layer_norms():
    policy = make_policy()
    policy.network.insert(1, LayerNorm(64))
    with torch.no_grad():
        policy.network[1].weight += torch.randn(64)
    snapshot = policy.snapshot()
    assert export.check_onnx(export.to_onnx(snapshot, "Some-v0"), snapshot) < 1e-5


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 4, 3]), spaces.MultiBinary(4)])
def test_the_file_of_several_choices_computes_what_torch_does(space):
    policy = make_policy(action_space=space)
    snapshot = policy.snapshot()
    file = export.to_onnx(snapshot, "Some-v0")
    assert export.check_onnx(file, snapshot) < 1e-5
    session = onnxruntime.InferenceSession(file)
    observation = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    logits, choices = session.run(["logits", "choices"], {"observation": observation})
    with torch.no_grad():
        expected = policy.network(policy.normalizer(torch.from_numpy(observation)))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert tuple(choices) == policy.choices


@pytest.mark.parametrize("shape", [(10, 7, 2), (40, 36)])
def test_the_file_of_pictures_computes_what_torch_does(shape):
    spec = dataclasses.replace(
        spec_of(5, 3, False), observation_space=spaces.Box(0, 255, shape, np.uint8)
    )
    torch.manual_seed(0)
    policy = model.policy(spec, TrainConfig(hidden_sizes=(8,), activation="relu"))
    with torch.no_grad():
        policy.network[-1].weight *= 300
    if hasattr(policy.normalizer, "set"):
        rng = np.random.default_rng(2)
        policy.normalizer.set(*rng.uniform(20, 150, (2, policy.normalizer.observation_dim)))
    snapshot = policy.snapshot()
    file = export.to_onnx(snapshot, "Some-v0")
    assert export.check_onnx(file, snapshot) < 1e-5
    session = onnxruntime.InferenceSession(file)
    observations = np.random.default_rng(0).integers(0, 256, (6, spec.observation_dim))
    (logits,) = session.run(["logits"], {"observation": observations.astype(np.float32)})
    with torch.no_grad():
        expected = policy(torch.from_numpy(observations.astype(np.uint8)))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert expected.std(dim=0).min() > 1e-2


def test_a_memory_is_refused():
    snapshot = make_policy().snapshot()
    memory = GRU(5, 5).layer()
    remembering = dataclasses.replace(snapshot, layers=(memory, *snapshot.layers))
    with pytest.raises(RunError, match="'gru' cannot be exported: it remembers an episode"):
        export.to_onnx(remembering, "Some-v0")


NEW_OUTPUTS = {
    "epsilon_greedy": {
        "values": ["batch", 3],
        "action": ["batch"],
        "epsilon": [1],
        "repeat": [1],
    },
    "epsilon_greedy_distribution": {
        "logits": ["batch", 3, 51],
        "values": ["batch", 3],
        "action": ["batch"],
        "epsilon": [1],
        "repeat": [1],
        "support": [51],
    },
    "squashed_gaussian": {
        "mean": ["batch", 3],
        "log_std": ["batch", 3],
        "action": ["batch", 3],
    },
    "noisy": {"action": ["batch", 3], "std": [3], "theta": [1]},
}


def widened(snapshot):
    """Weights large enough that what is clipped is clipped."""
    layers = [
        Layer(layer.kind, {name: array * 3 for name, array in layer.arrays.items()})
        for layer in snapshot.layers
    ]
    return dataclasses.replace(snapshot, layers=tuple(layers))


@pytest.mark.parametrize("kind", NEW_OUTPUTS)
def test_the_file_has_the_action_without_noise(kind):
    """By torch from the output of the network, which the file of a Gaussian policy has."""
    snapshot = widened(snapshot_with(kind, 5, 3, hidden=(16,)))
    file = export.to_onnx(snapshot, "Some-v0")
    assert export.check_onnx(file, snapshot) < 1e-5
    session = onnxruntime.InferenceSession(file)
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == NEW_OUTPUTS[kind]
    assert list(shapes) == export.output_names(snapshot)

    observation = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    width = ActingPolicy(snapshot).output_dim
    plain = Layer("gaussian", {"log_std": np.zeros(width, np.float32)})
    plain_model = export.to_onnx(dataclasses.replace(snapshot, head=plain), "Some-v0")
    (output,) = onnxruntime.InferenceSession(plain_model).run(
        ["mean"], {"observation": observation}
    )
    output = torch.from_numpy(output)
    answers = dict(zip(shapes, session.run(None, {"observation": observation}), strict=True))
    for name, array in snapshot.head.arrays.items():
        np.testing.assert_array_equal(answers.pop(name), array)
    match kind:
        case "epsilon_greedy":
            expected = {"values": output, "action": output.argmax(dim=1)}
        case "epsilon_greedy_distribution":
            logits = torch.stack(output.split(51, dim=1), dim=1)
            support = torch.from_numpy(snapshot.head.arrays["support"])
            values = (torch.softmax(logits, dim=2) * support).sum(dim=2)
            expected = {"logits": logits, "values": values, "action": values.argmax(dim=1)}
        case "squashed_gaussian":
            mean, log_std = output.split(3, dim=1)
            assert (log_std > 2).any()
            expected = {"mean": mean, "log_std": log_std.clamp(-20, 2), "action": mean.tanh()}
        case _:
            expected = {"action": output.clamp(-1, 1)}
    assert answers.keys() == expected.keys()
    for name, right in expected.items():
        np.testing.assert_allclose(answers[name], right, rtol=1e-4, atol=1e-5)
    greedy = ActingPolicy(snapshot).act(observation, None)
    np.testing.assert_allclose(answers["action"], greedy, rtol=1e-4, atol=1e-5)


def test_the_file_clips_a_deterministic_action():
    snapshot = widened(snapshot_with("noisy", 5, 3, hidden=(16,)))
    snapshot = dataclasses.replace(snapshot, layers=snapshot.layers[:-1])  # without tanh
    file = export.to_onnx(snapshot, "Some-v0")
    export.check_onnx(file, snapshot)
    observation = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    (action,) = onnxruntime.InferenceSession(file).run(["action"], {"observation": observation})
    assert np.abs(action).max() == 1.0


def test_equal_values_are_no_difference():
    """Whichever of the best actions the file takes."""
    snapshot = snapshot_with("epsilon_greedy", 5, 3, hidden=())
    weight = np.repeat(snapshot.layers[0].arrays["weight"][:, :1], 3, axis=1)
    values = Layer("dense", {"weight": weight, "bias": np.array([0, 1e-7, 2e-7], np.float32)})
    snapshot = dataclasses.replace(snapshot, layers=(values,))
    assert export.check_onnx(export.to_onnx(snapshot, "Some-v0"), snapshot) < 1e-6


def test_values_that_cancel_out_are_as_exact_as_their_support():
    """Nearly uniform distributions about 0, as those of an untrained network are."""
    snapshot = snapshot_with("epsilon_greedy_distribution", 5, 3, hidden=())
    tiny = {name: array * 1e-5 for name, array in snapshot.layers[0].arrays.items()}
    snapshot = dataclasses.replace(snapshot, layers=(Layer("dense", tiny),))
    assert export.check_onnx(export.to_onnx(snapshot, "Some-v0"), snapshot) < 1e-5


@pytest.mark.parametrize("kind", NEW_OUTPUTS)
def test_a_file_of_another_head_is_refused(monkeypatch, kind):
    """With other arrays, or other nodes, than those of the policy."""
    snapshot = widened(snapshot_with(kind, 5, 3, hidden=(16,)))
    for name, array in snapshot.head.arrays.items():
        head = Layer(kind, snapshot.head.arrays | {name: array / 2})
        other = export.to_onnx(dataclasses.replace(snapshot, head=head), "Some-v0")
        with pytest.raises(RunError, match="nothing was written"):
            export.check_onnx(other, snapshot)

    apply = Graph.apply
    others = {"ArgMax": "ArgMin", "Tanh": "Sigmoid", "Clip": "Max", "Softmax": "LogSoftmax"}
    for operation, other in others.items():
        nodes = onnx.load_from_string(export.to_onnx(snapshot, "Some-v0")).graph.node
        if operation not in {node.op_type for node in nodes}:
            continue

        def other_node(self, asked, *inputs, operation=operation, other=other, **options):
            return apply(self, other if asked == operation else asked, *inputs, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Graph, "apply", other_node)
            file = export.to_onnx(snapshot, "Some-v0")
        with pytest.raises(RunError, match="nothing was written"):
            export.check_onnx(file, snapshot)


def with_relu(snapshot):
    layers = [Layer("relu", {}) if layer.kind == "tanh" else layer for layer in snapshot.layers]
    return dataclasses.replace(snapshot, layers=tuple(layers))


def with_std(snapshot):
    first, *others = snapshot.layers
    changed = Layer("normalize", first.arrays | {"std": np.ones(5, np.float32)})
    return dataclasses.replace(snapshot, layers=(changed, *others))


@pytest.mark.parametrize(
    "change",
    [
        with_relu,
        lambda snapshot: dataclasses.replace(snapshot, layers=snapshot.layers[1:]),
        lambda snapshot: dataclasses.replace(
            snapshot, head=Layer("gaussian", {"log_std": np.zeros(3, np.float32)})
        ),
        with_std,
    ],
)
def test_a_file_of_another_policy_is_refused(change):
    snapshot = make_policy().snapshot()
    other = export.to_onnx(change(snapshot), "Some-v0")
    with pytest.raises(RunError, match="nothing was written"):
        export.check_onnx(other, snapshot)


def test_a_missing_clip_is_noticed(monkeypatch):
    snapshot = make_policy(activation="relu").snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(layers, "OBSERVATION_CLIP", 1e9)
        file = export.to_onnx(snapshot, "Some-v0")
    with pytest.raises(RunError, match="nothing was written"):
        export.check_onnx(file, snapshot)


def test_a_policy_of_nan_is_refused():
    snapshot = make_policy().snapshot()
    snapshot.layers[1].arrays["weight"][:] = np.nan
    with pytest.raises(RunError, match="differs from this one by nan"):
        export.check_onnx(export.to_onnx(snapshot, "Some-v0"), snapshot)


def test_one_output_of_nan_is_refused():
    snapshot = snapshot_with("squashed_gaussian", 5, 3, hidden=())
    snapshot.layers[0].arrays["bias"][3:] = np.nan  # of log_std, which is not the first output
    with pytest.raises(RunError, match="differs from this one by nan"):
        export.check_onnx(export.to_onnx(snapshot, "Some-v0"), snapshot)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = run_here(
        *("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "5"),
        *("--algorithm", "ppo", "--output", "run"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_command_exports_a_run(trained):
    done = run_main("export", "run", "policy.onnx", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("policy.onnx: observation [batch, 4] -> logits (2 actions)")
    with Trainer.load(trained / "run", local=True, workers=0) as trainer:
        snapshot = trainer.learner.snapshot()
    export.check_onnx((trained / "policy.onnx").read_bytes(), snapshot)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_exits_with_2(trained, tmp_path, missing):
    (tmp_path / f"{missing}.py").write_text("raise ImportError('it is not there')")
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_main("export", "run", "missing.onnx", cwd=trained, environment=path)
    assert done.returncode == 2 and not (trained / "missing.onnx").exists()
    assert f"the package {missing} is needed" in done.stderr and "--group export" in done.stderr


def test_mistakes_exit_with_2(trained):
    for arguments in (("nothing", "policy.onnx"), ("run", "no folder/policy.onnx"), ("run", ".")):
        done = run_here("export", *arguments, cwd=trained)
        assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("categorical", (5,)),
        ("factored", (5, 3, 1)),
        ("epsilon_greedy", (5,)),
        ("epsilon_greedy_distribution", (5,)),
    ],
)
def test_a_mask_is_one_more_input(kind, choices):
    """What it forbids is never the action, and the rest is as without it."""
    snapshot, width = snapshot_with(kind, 3, 5), sum(choices)
    file = export.to_onnx(snapshot, "Some-v0", masked=choices)
    assert export.check_onnx(file, snapshot, masked=choices) < 1e-5
    session = onnxruntime.InferenceSession(file)
    asked = [(each.name, each.shape, each.type) for each in session.get_inputs()]
    assert asked[0][0] == "observation"
    assert asked[1] == ("action_mask", ["batch", width], "tensor(int8)")
    plain = onnxruntime.InferenceSession(export.to_onnx(snapshot, "Some-v0"))
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(40, 3)).astype(np.float32)
    mask = (rng.random((40, width)) < 0.4).astype(np.int8)
    mask[np.arange(40), rng.integers(width, size=40)] = 1
    names = [output.name for output in session.get_outputs()]
    answers, without = (
        dict(zip(names, each.run(names, inputs), strict=True))
        for each, inputs in (
            (session, {"observation": observation, "action_mask": mask}),
            (plain, {"observation": observation}),
        )
    )
    numbers = "values" if "values" in names else "logits"
    wanted = np.where(mask, without[numbers], np.float32(-1e30))
    np.testing.assert_array_equal(answers[numbers], wanted)
    if "action" in names:
        np.testing.assert_array_equal(answers["action"], wanted.argmax(axis=1))
