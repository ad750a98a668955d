"""Networks that somebody changed in model.py: they train, deterministically, or are refused with a
reason."""

import importlib

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import model
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.training import choose
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training, network_of
from flame_rl.modules.layers import Activation, Dense, LayerModule, layers_of
from flame_rl.modules.networks import GaussianPolicy
from flame_rl.modules.observations import Scaling
from flame_rl.run.checks import own_networks
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.helpers import ROOT, spec_of
from tests.learners import ON_POLICY, learner_of, make_config, make_learner, random_episodes

OPTIONS = {"normalize_observations": False, "hidden_sizes": (8,)}
SPEC = spec_of(3, 2, continuous=True)


class OtherForward(GaussianPolicy):
    """The same layers, and another output."""

    def forward(self, observations):
        return super().forward(observations).square()


class OtherDense(Dense):
    """A layer that computes something else than the kind that it inherits."""

    def forward(self, x):
        return super().forward(x) ** 2


class Swish(nn.Module):
    """No `LayerModule`."""

    def forward(self, x):
        return nn.functional.silu(x)


def of_another_class(kind):
    def change(policy):
        policy.__class__ = kind

    return change


def with_method(name, method):
    method.__name__ = name
    return of_another_class(type("Own", (GaussianPolicy,), {name: method}))


CHANGES = {
    "a forward of its own": of_another_class(OtherForward),
    "a method replaced": lambda p: setattr(p, "of_output", lambda output, samples: (output,)),
    "a layer's method replaced": lambda p: setattr(p.network[1], "forward", torch.sin),
    "a layer of another class": lambda p: setattr(p.network[0], "__class__", OtherDense),
    "a module that is no layer": lambda p: p.network.insert(1, Swish()),
    "torch's own linear layer": lambda p: p.network.insert(1, nn.Linear(3, 3)),
    "dropout": lambda p: p.network.insert(1, nn.Dropout()),
    "a dense layer without a bias": lambda p: setattr(p.network[0], "bias", None),
    "an activation first": lambda p: p.network.insert(0, Activation("tanh")),
    "no layer": lambda p: setattr(p, "network", nn.Sequential()),
    "other layers around them": lambda p: setattr(p, "network", nn.Sequential(p.network)),
    "bytes": lambda p: setattr(p, "normalizer", Scaling(spaces.Box(0, 255, (3,), np.uint8))),
    "frames": lambda p: setattr(p, "frames", nn.Flatten(-1)),
    "one standard deviation for all": lambda p: setattr(p, "log_std", nn.Parameter(torch.ones(1))),
    "layers that do not fit": lambda p: p.network.insert(2, Dense(2, 2)),
    "no sequence of layers": lambda p: setattr(p, "network", Dense(3, 2)),
    "a parameter more": lambda p: setattr(p, "temperature", nn.Parameter(torch.ones(()))),
    "a frozen layer": lambda p: p.network[0].requires_grad_(False),
    "tied layers": lambda p: setattr(p.network[2], "weight", p.network[0].weight),
    "float64": lambda p: p.double(),
    "a hook": lambda p: p.network[0].register_forward_hook(lambda *given: None),
    "a hook on the way back": lambda p: p.register_full_backward_hook(lambda *given: None),
    "a hook of a parameter": lambda p: p.log_std.register_hook(torch.neg),
    "a parametrisation": lambda p: nn.utils.parametrizations.weight_norm(p.network[0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_network_goes_through_autograd(change):
    config = make_config("X-v0", hidden_sizes=(3,), activation="tanh", normalize_observations=True)
    assert type(in_training(model.policy(SPEC, config)).network) is CompiledNetwork
    policy = model.policy(SPEC, config)
    CHANGES[change](policy)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    network = network_of(policy) if change == "float64" else in_training(policy).network
    assert type(network) is AutogradNetwork
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name])


class TwoMethods(nn.Module):
    """A policy with what model.py's first lines ask for, and nothing more."""

    def __init__(self, spec, config):
        super().__init__()
        self.layers = nn.Sequential(
            Dense(spec.observation_dim, 8), Activation("tanh"), Dense(8, spec.action_dim)
        )

    def outputs(self, samples):
        distribution = torch.distributions.Normal(self.layers(samples["inputs"]), 0.5)
        log_probs = distribution.log_prob(samples["actions"]).sum(-1)
        return log_probs, distribution.entropy().sum(-1)

    def snapshot(self):
        log_std = np.full(self.layers[-1].out_features, np.log(0.5), np.float32)
        return PolicySnapshot(0, layers_of(self.layers), Layer("gaussian", {"log_std": log_std}))


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_two_methods_are_enough_for_a_policy(algorithm, monkeypatch):
    monkeypatch.setattr(model, "policy", TwoMethods)
    learner = learner_of(True, algorithm=algorithm, overlap=algorithm != "reinforce")
    before = learner.weights_digest()
    metrics = learner.update(random_episodes(True))
    assert learner.weights_digest() != before and np.isfinite(metrics["loss"])
    assert learner.collector_snapshot().version == (1 if algorithm == "reinforce" else 0)


def learner_with(change, monkeypatch):
    """A learner of A2C whose networks `change(policy, value)` has changed."""
    make, made = model.value, []
    make_policy = model.policy

    def policy(spec, config):
        made.append(make_policy(spec, config))
        return made[-1]

    def value(spec, config):
        value = make(spec, config)
        change(made[-1], value)
        return value

    monkeypatch.setattr(model, "policy", policy)
    monkeypatch.setattr(model, "value", value)
    return learner_of(True, algorithm="a2c", **OPTIONS)


def test_random_numbers_in_an_update_are_refused(monkeypatch):
    learner = learner_with(
        lambda policy, value: value.network.insert(1, nn.Dropout(0.5)), monkeypatch
    )
    with pytest.raises(UsageError, match="draws random numbers"):
        learner.update(random_episodes(True))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (nn.Module.double, r"network.0.weight of ValueNetwork is torch.float64 on cpu"),
        (lambda value: value.to("meta"), r"network.0.weight of ValueNetwork is .* on meta"),
        (lambda value: setattr(value, "network", nn.Sequential()), "ValueNetwork has no param"),
    ],
)
def test_parameters_that_cannot_be_trained_are_refused(change, error, monkeypatch):
    with pytest.raises(UsageError, match=error):
        learner_with(lambda policy, value: change(value), monkeypatch)


def four_actions(policy):
    policy.network.append(Dense(2, 4))
    policy.log_std = nn.Parameter(torch.zeros(4))


AT_THE_START = {
    "a number that is none": (
        lambda p: p.network[0].weight.data.fill_(np.nan),
        r"policy\.network\.0\.weight is NaN or infinite at first",
    ),
    "actions": (four_actions, "actions of 4 real numbers, and X-v0 has .* 2 real numbers"),
    "a pair": (
        with_method("snapshot", lambda self: (self.export_layers(), self.head())),
        r"Own\.snapshot \(test_changed_networks\.py, line \d+\) returned .* no PolicySnapshot",
    ),
    "one tensor": (
        with_method("outputs", lambda self, samples: self(samples["inputs"])),
        r"Own\.outputs \(test_changed_networks\.py, line \d+\) returned Tensor \[8, 2\] for",
    ),
    "one of two": (
        with_method("outputs", lambda self, samples: (self(samples["inputs"]),)),
        r"Own\.outputs .* \[\(8, 2\)\] for 8 steps, in place of \[\(8,\), \(8,\)\]",
    ),
}


def test_a_function_without_a_network_is_named(monkeypatch):
    monkeypatch.setattr(model, "value", lambda spec, config: None)
    with pytest.raises(UsageError, match="returned NoneType and no network"):
        learner_of(True, algorithm="a2c")


NO_OUTPUTS = [
    ("a2c", "value", "outputs", "ValueNetwork"),
    ("impala", "value", "scale", "ValueNetwork"),
    ("a2c", "value", "last", "ValueNetwork"),
    ("sac", "critic", "outputs", "CriticNetwork"),
]


@pytest.mark.parametrize(("algorithm", "name", "lacking", "remedy"), NO_OUTPUTS)
def test_a_network_without_what_learners_need_is_named(
    algorithm, name, lacking, remedy, monkeypatch
):
    def own(spec, config):
        module = nn.Sequential(Dense(spec.observation_dim, 1))
        has = {"outputs", "last", "scale"} - {lacking}
        vars(module).update(dict.fromkeys(has, lambda samples: (module(samples["inputs"])[:, 0],)))
        return module

    monkeypatch.setattr(model, name, own)
    error = (
        rf"own \(test_changed_networks\.py, line \d+\) returned Sequential, which has no {lacking}"
    )
    with pytest.raises(UsageError, match=f"{error}; make it a {remedy}"):
        learner_of(True, algorithm=algorithm)


OF_ONE_OUTPUT = [
    *((algorithm, "action_values") for algorithm in ("dqn", "pqn", "sarsa", "r2d2")),
    *(("td3", "deterministic_policy"), ("td3", "critic")),
    *(("sac", "squashed_policy"), ("sac", "critic")),
]


@pytest.mark.parametrize(("algorithm", "name"), OF_ONE_OUTPUT)
def test_a_second_output_off_policy_is_refused(algorithm, name, monkeypatch):
    make = getattr(model, name)

    def two(*arguments):
        module = make(*arguments)

        class Two(type(module)):
            def outputs(self, samples):
                return 2 * super().outputs(samples)

        module.__class__ = Two
        return module

    monkeypatch.setattr(model, name, two)
    error = (
        r"Two\.outputs \(test_changed_networks\.py, line \d+\) returned \[\(8, \d\), .* in place of"
    )
    with pytest.raises(UsageError, match=error):
        learner_of(name != "action_values", algorithm=algorithm)


def test_a_helper_in_a_file_of_ones_own_changes_the_networks_that_it_imports(tmp_path):
    own = tmp_path / "nets.py"
    own.write_text(
        (ROOT / "docs" / "python.md").read_text().split("# nets.py\n")[1].split("```")[0]
    )
    for algorithm, networks in {"ppo": 2, "sac": 3}.items():
        weights = make_learner(SPEC, algorithm=algorithm, model=own).weights()
        assert sum(array.shape == (40, 48) for array in weights.values()) >= networks


def test_a_missing_package_of_the_users_own_networks_is_named():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), own_networks():
        importlib.import_module("no_such_package")


def test_a_layer_in_two_networks_is_refused(monkeypatch):
    def share(policy, value):
        value.network[0] = policy.network[0]

    with pytest.raises(UsageError, match=r"'policy' and 'value' have the parameter .* in common"):
        learner_with(share, monkeypatch)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_frozen_layer_stays_as_it_is(layer, monkeypatch):
    def freeze(policy, value):
        value.network[layer].requires_grad_(False)

    learner = learner_with(freeze, monkeypatch)
    value = learner.parts["value"]
    before = {name: tensor.clone() for name, tensor in value.state_dict().items()}
    learner.update(random_episodes(True))
    for name, tensor in value.state_dict().items():
        if name.startswith("network."):
            assert torch.equal(tensor, before[name]) == name.startswith(f"network.{layer}.")


@pytest.mark.parametrize(
    ("layer", "parallel"), [(nn.BatchNorm1d(2), False), (nn.Linear(2, 2), True)]
)
def test_a_module_that_counts_is_computed_by_one_core(layer, parallel):
    module = nn.Sequential(nn.Linear(3, 2), layer)
    network = network_of(module, lambda own, samples: (own(samples["inputs"]),))
    assert network.parallel == parallel
    assert np.isfinite(network.outputs({"inputs": np.ones((4, 3), np.float32)})[0]).all()


class Wider(Dense):
    """Another constructor, and the same computation."""

    def __init__(self, inputs):
        super().__init__(inputs, 2 * inputs)


class OtherKind(Dense):
    """Says that it is a dense layer, and gives other arrays than it computes with."""

    kind = "dense"

    def forward(self, x):
        return -super().forward(x)


class OtherFeatures(model.SharedNetwork):
    def features(self, inputs):
        return super().features(inputs) + 1


UNLIKE_ACTORS = {
    "a layer's class": (lambda p: setattr(p.network[0], "__class__", OtherDense), "Dense.*add-a-l"),
    "a layer's method": (lambda p: setattr(p.network[0], "forward", torch.sin), "Dense.*add-a-l"),
    "a hook": (lambda p: p.network[0].register_forward_hook(lambda *given: None), "Dense: .* hook"),
    "a hook before": (lambda p: p.network[0].register_forward_pre_hook(print), "Dense: .* hook"),
    "a hook of all": (lambda p: p.network.register_forward_hook(print), "Sequential: .* hook"),
    "a kind": (lambda p: setattr(p.network[0], "__class__", OtherKind), "outputs differ"),
    "the policy": (of_another_class(OtherForward), "OtherForward.* outputs differ"),
    "its method": (lambda p: setattr(p, "forward", torch.sin), "outputs differ"),
}


@pytest.mark.parametrize("part", [*AT_THE_START, *UNLIKE_ACTORS])
def test_what_actors_or_losses_cannot_use_is_refused(part, monkeypatch):
    change, error = (AT_THE_START | UNLIKE_ACTORS)[part]
    with pytest.raises(UsageError, match=error):
        learner_with(lambda policy, value: change(policy), monkeypatch)


def test_a_shared_network_that_actors_would_compute_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr(model, "SharedNetwork", OtherFeatures)
    with pytest.raises(UsageError, match="outputs differ"):
        learner_of(True, algorithm="ppo", shared_torso=True)


def test_what_computes_the_same_is_exported():
    layer = Wider(3)
    (exported,) = layers_of(layer)
    np.testing.assert_array_equal(exported.arrays["weight"], layer.weight.detach().numpy().T)


class Doubling(LayerModule):
    """Somebody's own layer, which compiled code does not know."""

    kind = "scale"

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def arrays(self) -> dict[str, Tensor]:
        return {"factor": torch.full((1,), 2.0)}


class OwnDense(Dense):
    """A subclass, which may compute something else."""


def test_a_package_without_its_library_says_so_once(monkeypatch):
    monkeypatch.setattr(choose, "library", lambda: None)
    (notice,) = make_learner(spec_of(3, 2, True), algorithm="ppo").notices
    assert "about 16 times slower" in notice
    assert "`uv sync --reinstall-package flame-rl`" in notice


@pytest.mark.parametrize("layer", [Doubling, OwnDense])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_layer_that_compiled_code_does_not_know_is_named_once(layer, algorithm, monkeypatch):
    dense_layers = model.dense_layers

    def with_own(inputs, outputs, config, *options, **others):
        layers = dense_layers(inputs, outputs, config, *options, **others)
        own = layer() if layer is Doubling else layer(layers[0].in_features, layers[0].out_features)
        return [own, *layers] if layer is Doubling else [own, *layers[1:]]

    monkeypatch.setattr(model, "dense_layers", with_own)
    notices = make_learner(spec_of(3, 2, True), algorithm=algorithm).notices
    (notice,) = (each for each in notices if "compiled" in each)
    assert notice.startswith(f"{layer.__name__} is a layer that compiled code does not know: torch")
    assert "about 16 times slower" in notice and notice.endswith("see docs/add-a-layer.md")


@pytest.mark.parametrize(
    "options", [{}, {"memory": "gru"}, {"frame_stack": 2}, {"shared_torso": True}]
)
def test_nothing_is_said_where_nothing_can_be_done(options):
    assert make_learner(spec_of(3, 2, True), algorithm="ppo", **options).notices == []


def test_another_device_trains_by_torch_anyway(monkeypatch):
    learner = make_learner(spec_of(3, 2, True), algorithm="ppo")
    monkeypatch.setattr(choose, "library", lambda: None)
    learner._device = "cuda"
    assert learner.notices == []
