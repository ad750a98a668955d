"""On which device a run's networks are computed, and that no algorithm learns otherwise there: a
second copy of each network on the CPU takes the same way as one on a graphics card, and must give
the same bits; torch's device `meta` shows that everything is moved."""

import copy
import os

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner import make
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.training import autograd, device
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.frames import time_steps
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.helpers import spec_of
from tests.learner.test_inputs import random_episodes
from tests.learners import OF_CONTINUOUS_ACTIONS, make_config, make_learner, policy_and_value

pytestmark = pytest.mark.usefixtures("one_thread")
PICTURE = spaces.Box(0, 255, (6, 5, 2), np.uint8)
VECTOR = spaces.Box(-10, 10, (60,))
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("algorithm", "shared"), [*((name, False) for name in ALGORITHMS), ("ppo", True), ("a2c", True)]
)
def test_every_algorithm_learns_the_same_with_copies(algorithm, shared, monkeypatch):
    """Two updates, and the second begins with what a checkpoint has of the first."""
    continuous = algorithm in OF_CONTINUOUS_ACTIONS
    actions = spaces.Box(-1, 1, (3,)) if continuous else spaces.Discrete(5)
    spec = EnvironmentSpec("X-v0", PICTURE, actions)
    options = {
        "algorithm": algorithm,
        "hidden_sizes": (8,),
        "memory": "gru" if algorithm in ("r2d2", "ppo") else "none",
        "warm_up_steps": 0,
        "batch_size": 8,
        "updates_per_step": 0.2,
        "sequence_length": 4,
        "capacity": 100,
        "max_kl": 1e-4,  # also the way back is computed
    }
    if shared:
        options |= {"shared_torso": True}
    used: set[AutogradNetwork] = set()
    copy_state = AutogradNetwork._synchronize
    noting = lambda self: used.add(self) or copy_state(self)  # noqa: E731
    monkeypatch.setattr(AutogradNetwork, "_synchronize", noting)
    # Which tries networks that stay on the CPU.
    monkeypatch.setattr(make, "_refuse_unusable", lambda *_: None)
    digests, metrics = [], []
    for place in (None, torch.device("cpu")):
        used.clear()
        monkeypatch.setattr(device, "device_of", lambda name, place=place: place)
        learner = make_learner(spec, **options)
        learner.update(random_episodes(spec, seed=3))
        state = copy.deepcopy(learner.state_dict())
        if algorithm in ("reinforce", "a2c", "ppo", "pqn", "bc"):  # the others' replay is in files
            learner = make_learner(spec, **options)
            learner.load_state_dict(state)
        metrics.append(learner.update(random_episodes(spec, seed=3)))
        digests.append(learner.weights_digest())
        assert len(used) >= (1 if algorithm in ("pqn", "bc") else 2)
        assert all((each._module is not each._trained) is (place is not None) for each in used)
    assert digests[0] == digests[1]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("observations", "options", "there"),
    [
        (PICTURE, {}, True),
        (VECTOR, {"memory": "lstm"}, True),
        (VECTOR, {"hidden_sizes": (2048, 2048)}, True),
        (VECTOR, {"hidden_sizes": (256, 256)}, False),
        (spaces.Box(0, 255, (60,), np.uint8), {}, False),
        (spaces.Box(0, 255, (2, 30), np.uint8), {}, False),
        (spaces.Dict({"a": VECTOR}), {}, False),
    ],
)
def test_auto_takes_a_card_where_it_pays(observations, options, there, monkeypatch):
    config = TrainConfig(algorithm="ppo", **options)
    spec = EnvironmentSpec("X-v0", observations, spaces.Discrete(5))
    for available in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert device.choose_device(config, spec) == ("cuda" if available and there else "cpu")
        assert device.choose_device(config.changed(device="cpu"), spec) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device.choose_device(config.changed(device="cuda"), spec) == "cuda"


@pytest.mark.parametrize("built", [True, False])
def test_a_missing_card_is_explained(built, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    with pytest.raises(UsageError) as caught:
        make_learner(spec_of(3, 2, False), device="cuda")
    text = str(caught.value)
    assert text.startswith("--device: torch finds no graphics card: ")
    assert ("driver" in text) is built and ("build without CUDA" in text) is not built
    assert "Leave the flag out" in text and "--device cpu" in text


def test_a_card_computes_the_same_each_time(monkeypatch):
    """torch's switches, which can be set without a card, too."""

    def switches():
        cudnn = torch.backends.cudnn
        return (
            torch.get_deterministic_debug_mode(),
            torch.get_float32_matmul_precision(),
            cudnn.enabled,
            cudnn.deterministic,
            cudnn.benchmark,
            cudnn.allow_tf32,
        )

    before = switches()
    with device.reproducible("cpu"):
        assert switches() == before
    with device.reproducible("cuda"):
        assert switches() == (2, "highest", True, True, False, False)
    assert switches() == before
    with pytest.raises(ZeroDivisionError), device.reproducible("cuda"):
        raise ZeroDivisionError
    assert switches() == before

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert device.device_of("cpu") is None and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert device.device_of("cuda") == torch.device("cuda")
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":16:8"


# Networks that another device computes


def policy_of(width: int):
    config = make_config("X-v0", algorithm="ppo", hidden_sizes=(8,))
    return policy_and_value(spec_of(width, 3, True), config)[0]


def test_inputs_and_columns_are_moved_to_the_device(monkeypatch):
    """Without computing: for that, torch would import its compiler."""
    seen, policy = [], policy_of(60)

    def to_array(tensor: torch.Tensor) -> np.ndarray:
        seen.append(tensor.device)
        return np.zeros(tensor.shape, np.float32)  # on `meta` there are no numbers

    def apply(module, columns):
        here = [*module.parameters(), *module.buffers(), *columns.values()]
        assert {tensor.device for tensor in here} == {META}
        assert len(here) == len(list(policy.parameters())) + 2 + 3
        return (columns["inputs"],)

    monkeypatch.setattr(autograd, "to_array", to_array)
    network = AutogradNetwork(policy, apply, META)
    inputs, actions = (np.zeros((15, width), np.float32) for width in (60, 3))
    samples = {"inputs": inputs, "actions": actions, "time": time_steps(np.array([4, 1, 7, 3]))}
    network.outputs(samples)
    network.forward(samples)
    assert seen == [META, META]


def test_compiled_networks_are_for_the_cpu(monkeypatch):
    config = make_config("X-v0", algorithm="dqn", hidden_sizes=(8,))
    made = policy_of(60), model.action_values(spec_of(60, 3, False), config)
    for place in (None, CPU):
        monkeypatch.setattr(device, "device_of", lambda name, place=place: place)
        with device.reproducible("cpu"):
            chosen = [in_training(module).network for module in made]
        assert [type(network) is AutogradNetwork for network in chosen] == [place is CPU] * 2
        assert all(network.parallel is (place is None) for network in chosen)
        assert (type(chosen[0]) is CompiledNetwork) is (place is None)
