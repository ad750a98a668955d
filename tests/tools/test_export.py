"""ONNX files of policies, compared with the torch modules that they came from."""

import copy
import dataclasses
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl import Policy, Trainer
from flame_rl.modules.networks import Returns
from flame_rl.nets.acting import ActingPolicy
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError
from tests.helpers import refusal, run_ok, spec_of
from tests.learners import shaken

pytest.importorskip("onnx", reason="uv run --group export pytest")
pytest.importorskip("onnxruntime", reason="uv run --group export pytest")

import onnxruntime

from flame_rl.tools.onnx_file import ExportedPolicy, check_onnx, to_onnx

DISCRETE, CONTINUOUS = spec_of(5, 3, False, env_id="Some-v0"), spec_of(5, 3, True)
DQN = TrainConfig(algorithm="dqn", hidden_sizes=(16,))
SUPPORT = np.linspace(-3, 5, 51)


def make_policy(spec=CONTINUOUS, **options):
    """A policy of a2c whose weights are not the first ones, nor its statistics."""
    options = {"hidden_sizes": (16,), "normalize_observations": True} | options
    policy = shaken(model.policy(spec, TrainConfig(**options)))
    if hasattr(policy.normalizer, "set") and policy.normalizer.observation_dim == 5:
        policy.normalizer.set(np.array([0.0, 5, -5, 100, 0]), np.array([1.0, 2, 0.1, 30, 1e-4]))
    return policy


def action_values(**returns):
    return shaken(model.action_values(DISCRETE, DQN, Returns(**returns)))


def of_space(action_space):
    return dataclasses.replace(DISCRETE, action_space=action_space)


def of_pictures(shape):
    space = spaces.Dict(
        {"eye": spaces.Box(0, 255, shape, np.uint8), "arm": spaces.Box(-1, 1, (4,))}
    )
    return dataclasses.replace(DISCRETE, observation_space=space)


LOGITS = {"logits": ["batch", 3]}
VALUES = {"values": ["batch", 3], "action": ["batch"], "epsilon": [1], "repeat": [1]}


def itself(y):
    return [y]


# A maker of the module, the shapes of the file's outputs, and how torch computes the first ones
# from the network's output.
POLICIES = {
    "gaussian": (make_policy, {"mean": ["batch", 3], "log_std": [3]}, itself),
    "factored": (
        lambda: make_policy(of_space(spaces.MultiDiscrete([2, 4, 3]))),
        *({"logits": ["batch", 9], "choices": [3]}, itself),
    ),
    "pictures": (lambda: make_policy(of_pictures((40, 36))), LOGITS, itself),
    "values": (action_values, VALUES, lambda y: [y, y.argmax(dim=1)]),
    "normalized values": (
        lambda: shaken(model.action_values(DISCRETE, TrainConfig(algorithm="pqn"))),
        *(VALUES, lambda y: [y, y.argmax(dim=1)]),
    ),
    "duelling quantiles": (
        lambda: action_values(dueling=True, quantiles=5),
        *(VALUES, lambda y: [duelling(y, 5).mean(dim=2)]),
    ),
    "successor features": (
        lambda: action_values(weights=np.array([1, -2], np.float32)),
        *(VALUES, lambda y: [y.unflatten(1, (3, 2)) @ torch.tensor([1.0, -2])]),
    ),
    "distribution": (
        lambda: action_values(support=SUPPORT, dueling=True),
        {"logits": ["batch", 3, 51]} | VALUES | {"support": [51]},
        lambda y: [
            duelling(y, 51),
            duelling(y, 51).softmax(dim=2) @ torch.tensor(SUPPORT, dtype=torch.float32),
        ],
    ),
    "squashed": (
        lambda: shaken(model.squashed_policy(CONTINUOUS, TrainConfig(algorithm="sac"))),
        {"mean": ["batch", 3], "log_std": ["batch", 3], "action": ["batch", 3]},
        lambda y: [y[:, :3], y[:, 3:].clamp(-20, 2), y[:, :3].tanh()],
    ),
    "noisy": (
        lambda: shaken(model.deterministic_policy(CONTINUOUS, TrainConfig(algorithm="td3")), 0.03),
        *({"action": ["batch", 3], "std": [3], "theta": [1]}, itself),
    ),
}


def duelling(y, atoms):
    value, advantages = y.unflatten(1, (4, atoms)).split((1, 3), dim=1)
    return value + advantages - advantages.mean(dim=1, keepdim=True)


def exported(policy, choices=()):
    """The policy with its outputs, and its file, which computes what actors do."""
    module = ExportedPolicy(policy, policy.snapshot())
    file = to_onnx(module, "Some-v0", choices)
    assert check_onnx(file, module.snapshot, choices) < 1e-4
    return module, file


def run(file, **inputs):
    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("name", POLICIES)
def test_the_file_computes_what_torch_does(name):
    make, shapes, compute = POLICIES[name]
    policy = make()
    module, file = exported(policy)
    session = onnxruntime.InferenceSession(file)
    (asked,) = session.get_inputs()
    width = ActingPolicy(module.snapshot).observation_dim
    assert (asked.name, asked.shape, asked.type) == (
        *("observation", ["batch", width], "tensor(float)"),
    )
    assert session.get_modelmeta().custom_metadata_map == {"env_id": "Some-v0", "updates": "0"}
    assert {output.name: output.shape for output in session.get_outputs()} == shapes
    assert list(shapes) == module.outputs
    observations = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    # The clip is part of the policy.
    observations[3:] *= 100
    for batch in (observations, observations[:1]):
        answers = run(file, observation=batch)
        with torch.no_grad():
            expected = compute(policy(torch.from_numpy(batch)))
        for output, right in zip(shapes, expected, strict=False):
            size = 1e-4 * max(1, float(right.abs().max()))
            np.testing.assert_allclose(answers[output], right, atol=size)
        for output, array in module.snapshot.head.arrays.items():
            np.testing.assert_array_equal(answers[output], array)


@pytest.mark.parametrize(
    ("make", "choices"),
    [
        (lambda: make_policy(DISCRETE), (3,)),
        (POLICIES["factored"][0], (2, 4, 3)),
        (action_values, (3,)),
        (POLICIES["distribution"][0], (3,)),
    ],
)
def test_a_mask_is_one_more_input(make, choices):
    """What it forbids is never the action, and the rest is as without it."""
    policy, width = make(), sum(choices)
    _, file = exported(policy, choices)
    asked = onnxruntime.InferenceSession(file).get_inputs()[1]
    assert (asked.name, asked.shape, asked.type) == (
        *("action_mask", ["batch", width], "tensor(int8)"),
    )
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(40, 5)).astype(np.float32)
    mask = (rng.random((40, width)) < 0.4).astype(np.int8)
    mask[np.arange(40), rng.integers(width, size=40)] = 1
    answers = run(file, observation=observation, action_mask=mask)
    without = run(exported(policy)[1], observation=observation)
    numbers = "values" if "values" in answers else "logits"
    wanted = np.where(mask, without[numbers], np.float32(-1e30))
    np.testing.assert_array_equal(answers[numbers], wanted)
    if "action" in answers:
        np.testing.assert_array_equal(answers["action"], wanted.argmax(axis=1))


@pytest.mark.parametrize("options", [{"memory": "gru"}, {"frame_stack": 2}])
def test_a_memory_is_refused(options):
    policy = model.policy(DISCRETE, TrainConfig(algorithm="ppo", **options))
    with pytest.raises(RunError, match="cannot be exported: it remembers an episode"):
        ExportedPolicy(policy, policy.snapshot())


def test_equal_values_are_no_difference():
    """Whichever of the best actions the file takes."""
    policy = model.action_values(DISCRETE, TrainConfig(algorithm="dqn", hidden_sizes=()))
    with torch.no_grad():
        policy.network[0].weight[:] = policy.network[0].weight[:1]
        policy.network[0].bias[:] = torch.tensor([0, 1e-7, 2e-7])
    exported(policy)


def test_values_that_cancel_out_are_as_exact_as_their_support():
    """Nearly uniform distributions about 0, as those of an untrained network are."""
    policy = model.action_values(DISCRETE, DQN, Returns(support=np.linspace(-5, 5, 51)))
    with torch.no_grad():
        for parameter in policy.network[-1].parameters():
            parameter *= 1e-5
    exported(policy)


def with_nan(policy):
    with torch.no_grad():
        policy.network[-1].bias[-1] = torch.nan


def without_clip(policy):
    policy.normalizer.forward = lambda x: (x - policy.normalizer.mean) / policy.normalizer.std


def with_another_std(policy):
    with torch.no_grad():
        policy.log_std += 1


@pytest.mark.parametrize("change", [with_nan, without_clip, with_another_std])
def test_a_file_of_another_policy_is_refused(change):
    policy = make_policy()
    snapshot = copy.deepcopy(policy.snapshot())
    change(policy)
    # One whose `forward` is changed has no snapshot of its own.
    own = snapshot if change is without_clip else policy.snapshot()
    file = to_onnx(ExportedPolicy(policy, own), "Some-v0")
    with pytest.raises(RunError, match="nothing was written"):
        check_onnx(file, snapshot)


@pytest.mark.parametrize("name", ["values", "distribution", "squashed", "noisy"])
def test_a_file_of_another_head_is_refused(name):
    module, _ = exported(POLICIES[name][0]())
    forward, place = module.forward, module.outputs.index("action")

    def changed(observation):
        outputs = forward(observation)
        other = outputs[place] - 0.5
        if outputs[place].dtype == torch.int64:
            other = outputs[module.outputs.index("values")].argmin(dim=1)
        return [*outputs[:place], other, *outputs[place + 1 :]]

    module.forward = changed
    with pytest.raises(RunError, match="nothing was written"):
        check_onnx(to_onnx(module, "Some-v0"), module.snapshot)


def test_the_command_exports_a_run(trained):
    done = run_ok("export", "run", "policy.onnx", cwd=trained)
    assert done.stdout.startswith("policy.onnx: observation [batch, 4] -> logits (2 actions)")
    with Trainer.load(trained / "run", local=True, workers=0) as trainer:
        check_onnx((trained / "policy.onnx").read_bytes(), trainer.learner.snapshot())


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "ppo", "shared_torso": True},
        {"algorithm": "sac", "env": "Pendulum-v1", "normalize_observations": True},
    ],
)
def test_whatever_learner_has_the_policy(tmp_path, options):
    """With a network that is also the values', and normalised before the policy."""
    config = TrainConfig(
        **{"env": "cartpole", "local": True, "workers": 0, "steps_per_iter": 60} | options,
        iterations=1,
        hidden_sizes=(8,),
    )
    with Trainer(config) as trainer:
        trainer.train()
        trainer.save(tmp_path / "policy.ckpt")
        module = ExportedPolicy.of_learner(trainer.learner)
    file = to_onnx(module, "X-v0")
    assert check_onnx(file, module.snapshot) < 1e-4
    policy = Policy.load(tmp_path / "policy.ckpt")
    observations = [policy.spec.observation_space.sample() for _ in range(8)]
    answers = run(file, observation=np.array(observations, np.float32))
    if "logits" in answers:
        assert answers["logits"].argmax(axis=1).tolist() == [
            int(action) for action in policy.act_all(observations)
        ]


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_a_missing_package_exits_with_2(trained, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    said = refusal("export", "run", "missing.onnx", cwd=trained)
    assert not (trained / "missing.onnx").exists()
    assert f"the package {missing} is needed" in said and "--group export" in said


def test_mistakes_exit_with_2(trained):
    for arguments in (("nothing", "policy.onnx"), ("run", "no folder/policy.onnx"), ("run", ".")):
        refusal("export", *arguments, cwd=trained)
