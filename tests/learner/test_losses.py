"""A sum of losses on one network, against torch's gradient of the plain sum, written out anew."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.update import log_probs_of, policy_samples
from flame_rl.learner.training import autograd
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes
from tests.learners import ON_POLICY, learner_of, random_episodes

HERE = "tests.learner.test_losses"
pytestmark = pytest.mark.usefixtures("one_thread")


class NextObservation(nn.Module):
    """Depends on everything that an auxiliary loss may see."""

    def __init__(self, features: int, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(features, spec.observation_dim)  # a name that `Network` looks for

    def forward(self, features, samples):
        change = samples["next_observations"] - samples["observations"]
        errors = (self.layer(features) - change).square().sum(dim=-1)
        kinds = samples["rewards"] + 3 * samples["terminated"]
        actions = samples["actions"].reshape(*kinds.shape, -1).sum(dim=-1)
        return errors * (2 + kinds + actions)


class Size(nn.Module):
    """Has no parameters: the features should be small."""

    def __init__(self, features: int, spec: EnvironmentSpec) -> None:
        super().__init__()

    def forward(self, features, samples):
        return features.square().sum(dim=-1)


AUXILIARY = {
    "auxiliary": (f"{HERE}:NextObservation", f"{HERE}:Size"),
    "auxiliary_weights": (0.3, 0.02),
}
NAMES = ("policy", "value", "next_observation", "size")


def shared_learner(continuous: bool, **options):
    return learner_of(continuous, **({"shared_torso": True, "epochs": 1} | options))


def expected_losses(module, episodes: Episodes, algorithm: str) -> dict[str, torch.Tensor]:
    """The mean losses of the first update, step by step, before which all values are 0."""
    factor = {"reinforce": 0.9, "a2c": 0.9 * 0.8, "ppo": 0.9 * 0.8}[algorithm]
    returns = []
    for episode in episodes:
        g, backwards = 0.0, []
        for reward in episode.rewards[::-1]:
            g = reward + factor * g
            backwards.append(g)
        returns += backwards[::-1]
    mean = sum(returns) / len(returns)
    std = math.sqrt(sum((g - mean) ** 2 for g in returns) / len(returns))
    scale = math.sqrt(sum(g * g for g in returns) / len(returns))
    advantages, targets = [(g - mean) / std for g in returns], returns

    losses, t = {name: 0.0 for name in NAMES}, 0
    *hidden, output = module.policy.network
    for episode in episodes:
        features = torch.from_numpy(episode.observations[:-1])
        for layer in hidden:
            features = layer(features)
        for step in range(episode.length):
            out, action = output(features[step]), episode.actions[step]
            if episode.actions.dtype == np.int32:
                log_pi = torch.log_softmax(out, dim=0)
                log_prob, entropy = log_pi[int(action)], -(log_pi.exp() * log_pi).sum()
            else:
                normal = torch.distributions.Normal(out, module.policy.log_std.exp())
                log_prob = normal.log_prob(torch.from_numpy(action)).sum()
                entropy = normal.entropy().sum()
            gain = log_prob if algorithm != "ppo" else (log_prob - log_prob.detach()).exp()
            losses["policy"] = losses["policy"] - gain * advantages[t] - 0.1 * entropy
            value = (features[step] * module.value.weight[0]).sum() + module.value.bias[0]
            losses["value"] = losses["value"] + 0.5 * (value - targets[t] / scale) ** 2
            predicted = module.auxiliary["next_observation_loss"].layer(features[step])
            change = torch.from_numpy(episode.observations[step + 1] - episode.observations[step])
            ended = episode.terminated and step + 1 == episode.length
            factor_of_step = 2 + episode.rewards[step] + 3 * ended + float(np.sum(action))
            error = ((predicted - change) ** 2).sum() * factor_of_step
            losses["next_observation"] = losses["next_observation"] + error
            losses["size"] = losses["size"] + (features[step] ** 2).sum()
            t += 1
    return {name: loss / t for name, loss in losses.items()}


@pytest.mark.parametrize(
    ("algorithm", "memory", "continuous"),
    [
        ("reinforce", "none", True),
        ("reinforce", "gru", False),
        ("a2c", "none", False),
        ("a2c", "gru", True),
        ("ppo", "none", True),
        ("ppo", "none", False),
        ("ppo", "lstm", True),
    ],
)
def test_losses_gradient_and_norms_are_those_of_the_plain_sum(
    algorithm, memory, continuous, monkeypatch
):
    if algorithm == "a2c":  # several slices
        monkeypatch.setattr(autograd, "_ROWS", 5)
        monkeypatch.setattr(autograd, "_ROWS_OF_SEQUENCES", 5)
    learner = shared_learner(
        continuous,
        algorithm=algorithm,
        memory=memory,
        memory_size=5,
        gamma=0.9,
        gae_lambda=0.8,
        entropy_coefficient=0.1,
        value_weight=0.7,
        **AUXILIARY,
    )
    module, episodes = learner.parts["shared"], random_episodes(continuous)
    losses = expected_losses(module, episodes, algorithm)
    weights = dict(zip(NAMES, (1.0, 0.7, 0.3, 0.02), strict=True))
    total = sum(weights[name] * loss for name, loss in losses.items())
    parameters = list(module.parameters())
    gradients = {
        name: torch.autograd.grad(
            weights.get(name, 1.0) * loss, parameters, retain_graph=True, materialize_grads=True
        )
        for name, loss in {**losses, "": total}.items()
    }
    norms = {
        name: math.sqrt(sum((part**2).sum().item() for part in parts))
        for name, parts in gradients.items()
    }

    metrics = learner.update(episodes)
    assert metrics.keys() == set(learner.algorithm.metrics)
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-5)
    assert metrics["gradient_norm"] == pytest.approx(norms[""], rel=1e-3)
    for name in NAMES:
        assert metrics[f"{name}_loss"] == pytest.approx(losses[name].item(), rel=1e-4, abs=1e-5)
        assert metrics[f"{name}_gradient_norm"] == pytest.approx(norms[name], rel=1e-3), name
    theirs = torch.cat([each.reshape(-1) for each in gradients[""]]).numpy()
    ours = learner.parts["shared_adam"].gradient
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_shared_policy_carries_nothing_else_to_actors():
    layers = shared_learner(True, normalize_observations=True, **AUXILIARY).snapshot().layers
    assert [layer.kind for layer in layers] == ["normalize", "dense", "tanh", "dense"]


class Watched(Size):
    """Keeps what it has seen."""

    seen: list[dict[str, torch.Tensor]] = []  # noqa: RUF012

    def forward(self, features, samples):
        self.seen.append(samples)
        return features.sum(dim=-1)


@pytest.mark.parametrize("frames", [1, 3])
def test_auxiliary_losses_see_the_next_observation_normalised(frames):
    options = {"auxiliary": (f"{HERE}:Watched",), "auxiliary_weights": (1.0,)}
    options |= {"normalize_observations": True, "frame_stack": frames}
    learner = shared_learner(True, algorithm="a2c", **options)
    episodes = random_episodes(True)
    observations = 5 + 3 * episodes.columns["observations"]
    Watched.seen.clear()
    learner.update(replace(episodes, columns=episodes.columns | {"observations": observations}))
    (seen,) = Watched.seen
    mean, std = observations.mean(axis=0), observations.std(axis=0)
    start, row = 0, 0
    for length in episodes.lengths:
        for step in range(length):
            following = (observations[start + step + 1] - mean) / std
            np.testing.assert_allclose(seen["next_observations"][row], following, atol=1e-4)
            latest = seen["observations"][row].detach().reshape(3, frames)[:, -1]
            now = (observations[start + step] - mean) / std
            np.testing.assert_allclose(latest, now, atol=1e-4)
            row += 1
        start += length + 1


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_kl_limit_holds_for_all_that_moves_the_policy(algorithm):
    """Without rewards, an auxiliary loss does nearly alone."""
    options = {"max_kl": 1e-3, "learning_rate": 0.1, "auxiliary": (f"{HERE}:Size",)}
    learner = shared_learner(
        True, algorithm=algorithm, auxiliary_weights=(100.0,), hidden_sizes=(6, 5), **options
    )
    episodes = random_episodes(True)
    columns = episodes.columns | {"rewards": np.zeros(episodes.steps)}
    episodes = replace(episodes, columns=columns)
    samples = policy_samples(make_batch(episodes))
    with torch.no_grad():
        # Large enough for the features to matter.
        learner.parts["shared"].policy.network[-1].weight.mul_(100)
    network = learner.algorithm.networks.policy.network
    shortened = []
    for _ in range(4):
        before = log_probs_of(network, samples).astype(np.float64)
        metrics = learner.update(episodes)
        ratio = log_probs_of(network, samples) - before
        kl = (np.expm1(ratio) - ratio).mean()
        assert 0 < kl <= 1e-3 and kl == pytest.approx(metrics["kl"], rel=0.05)
        assert metrics["policy_gradient_norm"] < 0.1 * metrics["size_gradient_norm"]
        shortened.append(metrics["update_scale"])
    assert min(shortened) < 1


def test_the_weight_of_an_auxiliary_loss_decides_alone_whether_it_matters():
    """The first weights of policy and values do not depend on which losses there are."""
    options = {"algorithm": "ppo", "minibatches": 1}
    without, with_none = (
        shared_learner(True, **options, **more)
        for more in ({}, {"auxiliary": (f"{HERE}:NextObservation",), "auxiliary_weights": (0.0,)})
    )
    for learner in (without, with_none):
        learner.update(random_episodes(True))
    for name, tensor in without.parts["shared"].state_dict().items():
        assert torch.equal(tensor, with_none.parts["shared"].state_dict()[name]), name


def test_a_policy_that_went_too_far_ends_the_update_for_the_values_too():
    """Every step of the value loss would move the policy further."""
    options = {"algorithm": "ppo", "epochs": 8, "learning_rate": 0.3, "max_kl": 0.01}
    options |= {"auxiliary": (f"{HERE}:Watched",), "auxiliary_weights": (0.0,)}
    Watched.seen.clear()
    metrics = shared_learner(True, **options).update(random_episodes(True))
    assert metrics["kl"] <= 0.01
    # The minibatch that exceeded it is the last one that was looked at.
    assert len(Watched.seen) == metrics["policy_steps"] + 1 < 8


def clipped(log_probs, entropies, samples):
    """The loss of PPO with a clip range of 0.1."""
    ratio = torch.exp(log_probs - samples["log_probs"])
    pair = ratio, torch.clamp(ratio, 0.9, 1.1)
    return -torch.minimum(*(each * samples["advantages"] for each in pair))


def gradient(log_probs, entropies, samples):
    """The loss of reinforce and a2c."""
    return -log_probs * samples["advantages"]


@pytest.mark.parametrize(
    ("algorithm", "loss", "more"),
    [
        ("ppo", "clipped", {}),
        ("ppo", "clipped", {"overlap": True}),
        ("ppo", "clipped", {"shared_torso": True} | AUXILIARY),
        ("ppo", "clipped", {"memory": "gru", "memory_size": 5}),
        ("a2c", "gradient", {"overlap": True}),
        ("reinforce", "gradient", {}),
    ],
)
def test_an_algorithms_own_loss_in_torch_trains_as_the_built_in_one(algorithm, loss, more):
    """To float32's rounding."""
    options = {"algorithm": algorithm, "epochs": 20, "clip_range": 0.1, "entropy_coefficient": 0.1}
    options |= {"learning_rate": 0.03} | more
    built_in = learner_of(True, **options)
    own = learner_of(True, policy_loss=f"{HERE}:{loss}", **options)
    for _ in range(3):
        expected, metrics = (each.update(random_episodes(True)) for each in (built_in, own))
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert metrics["kl"] > 1e-3
    for name, array in own.weights().items():
        np.testing.assert_allclose(array, built_in.weights()[name], rtol=1e-4, atol=1e-5)


def test_an_algorithm_that_ignores_it_is_named(monkeypatch):
    def own(networks, batch, config, decay, generator):
        return {}

    monkeypatch.setattr("flame_rl.learner.algorithms.a2c.a2c", own)
    learner = learner_of(True, algorithm="a2c", policy_loss=f"{HERE}:gradient")
    with pytest.raises(UsageError, match=r"--policy-loss: own \(test_losses.* has no use for it"):
        learner.update(random_episodes(True))
    learner_of(True, algorithm="a2c").update(random_episodes(True))


def in_place(log_probs, entropies, samples):
    return log_probs.exp().clamp_(0.8, 1.2)


def of_advantages(log_probs, entropies, samples):
    return samples["advantages"]


def scaled(log_probs, entropies, samples):
    return log_probs * samples["advantages"].mul_(2)


def mean(log_probs, entropies, samples):
    return log_probs.mean()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Absent", "module 'tests.learner.test_losses' has no function 'Absent'"),
        ("in_place", "{} raised RuntimeError: .*inplace operation"),
        ("of_advantages", "{} returned losses that do not depend on the network's outputs"),
        ("scaled", "{} changed samples.'advantages'. in place"),
        ("mean", "{} returned torch.float32 of shape \\(\\)"),
        ("Raises", "{} raised TypeError"),
    ],
)
def test_what_a_policy_loss_does_wrong_is_said(name, message):
    with pytest.raises(UsageError, match=f"^--policy-loss: {message.format(f'{HERE}:{name}')}"):
        learner_of(True, algorithm="ppo", policy_loss=f"{HERE}:{name}").update(
            random_episodes(True)
        )


def broken(features: int, spec: EnvironmentSpec) -> object:
    raise ValueError("no such thing")


class ChangesSample(Size):
    def forward(self, features, samples):
        samples["rewards"].clamp_(-1, 1)
        return features.sum(dim=-1) * samples["rewards"]


class Empties(Size):
    def forward(self, features, samples):
        samples.clear()
        return features.sum(dim=-1)


FORWARD = {
    "Mean": lambda self, features, samples: features.mean(),
    "Detached": lambda self, features, samples: features.detach().sum(dim=-1),
    "Raises": lambda self, features, samples: samples["colour"],
    "ChangesFeatures": lambda self, features, samples: features.mul_(2).sum(dim=-1),
    "NeedsRewards": lambda self, features, samples: features.sum(dim=-1) * samples["rewards"],
}
globals().update({name: type(name, (Size,), {"forward": each}) for name, each in FORWARD.items()})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "broken raised ValueError: no such thing"),
        ("Absent", "has no function 'Absent'"),
        ("Mean", "mean_loss returned torch.float32 of shape ()"),
        ("Detached", "detached_loss returned losses that do not depend on the network's outputs"),
        ("Raises", "raises_loss raised KeyError: 'colour'"),
        ("ChangesSample", "changes_sample_loss changed samples.'rewards'. in place"),
    ],
)
def test_what_an_auxiliary_loss_does_wrong_is_said(name, message):
    options = {"auxiliary": (f"{HERE}:{name}",), "auxiliary_weights": (1.0,)}
    with pytest.raises(UsageError, match=message.replace("()", r"\(\)")):
        shared_learner(True, algorithm="a2c", **options).update(random_episodes(True))


def test_an_auxiliary_loss_whose_gradient_fails_is_named():
    options = {"auxiliary": (f"{HERE}:ChangesFeatures",), "auxiliary_weights": (1.0,)}
    learner = shared_learner(True, algorithm="a2c", **options)
    words = "the gradient of .*_loss failed: RuntimeError: .*inplace.*; .*in operations"
    with pytest.raises(UsageError, match=words):
        learner.update(random_episodes(True))


def test_an_auxiliary_loss_does_not_change_what_the_next_one_sees():
    names = tuple(f"{HERE}:{name}" for name in ("Empties", "NeedsRewards"))
    learner = shared_learner(True, algorithm="a2c", auxiliary=names, auxiliary_weights=(1.0, 1.0))
    learner.update(random_episodes(True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auxiliary": ("a:B",), "auxiliary_weights": (1,)}, "--auxiliary: .* add --shared-torso"),
        ({"auxiliary": ("a:B",), "shared_torso": True}, "--auxiliary-weights: as many as"),
        ({"auxiliary_weights": (1,)}, "--auxiliary-weights: as many as"),
        ({"auxiliary": ("B",), "shared_torso": True}, "--auxiliary: a module and a class"),
        ({"auxiliary": ("a:Value",)}, "--auxiliary: two losses have the name value"),
        ({"policy_loss": "clipped"}, "--policy-loss: a module and a function"),
        ({"value_weight": 0.0}, "--value-weight: above 0"),
        ({"algorithm": "dqn", "shared_torso": True}, "shared_torso: a setting of reinforce"),
        (
            {"algorithm": "reinforce", "baseline": "none", "shared_torso": True},
            "--shared-torso: there is no value network; add --baseline value",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**({"algorithm": "ppo"} | settings))


class Replacing(NextObservation):
    """Keeps its weights at length 1, in some way that the optimiser cannot follow."""

    how = ""

    def forward(self, features, samples):
        weight = nn.functional.normalize(self.layer.weight.detach())
        if self.how == "data":
            self.layer.weight.data = weight
        elif self.how == "parameter":
            self.layer.weight = nn.Parameter(self.layer.weight.data)
        elif self.how == "assign":
            self.layer.load_state_dict({"weight": weight, "bias": self.layer.bias}, assign=True)
        elif self.how == "another":
            self.another = nn.Parameter(torch.zeros(1))
        elif self.how == "none":
            self.layer.weight = None
            return features.sum(dim=-1)
        return super().forward(features, samples)


@pytest.mark.parametrize("how", ["data", "parameter", "assign", "another", "none"])
def test_a_parameter_that_is_replaced_in_an_update_is_refused(how, monkeypatch):
    monkeypatch.setattr(Replacing, "how", how)
    options = {"auxiliary": (f"{HERE}:Replacing",), "auxiliary_weights": (1.0,)}
    learner = shared_learner(True, algorithm="ppo", **options)
    before = {name: array.copy() for name, array in learner.state_dict().items()}
    with pytest.raises(UsageError, match=r"replacing_loss.*was replaced .* in place"):
        learner.update(random_episodes(True))
    learner.load_state_dict(before, undo=True)  # as a Trainer does
    after = learner.state_dict()
    for name in before.keys() & after.keys():
        np.testing.assert_array_equal(before[name], after[name])
