"""Files of demonstrations: what they say, and that every fault in them is told in one line."""

import io
import os
import pickle
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.actor.environments.converting import action_converter
from flame_rl.learner.demonstrations.conversion import (
    actions_from_environment,
    episodes_of,
    flattened,
)
from flame_rl.learner.demonstrations.files import (
    Demonstrations,
    episodes_digest,
    read_npz,
    write_demonstrations,
)
from flame_rl.learner.rewards import RAW
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.environments import Sampled
from tests.helpers import ROOT, run_ok
from tests.hostile import Bomb

OBSERVED = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CONTINUOUS = EnvironmentSpec("X-v0", OBSERVED, spaces.Box(-2, 4, (2,), np.float32))
DISCRETE = EnvironmentSpec("X-v0", OBSERVED, spaces.Discrete(4, start=-1))
MASKED = replace(DISCRETE, action_mask="info")


def arrays(spec: EnvironmentSpec) -> dict[str, np.ndarray]:
    """Three episodes of 2, 1 and 3 steps, the second one truncated."""
    rng = np.random.default_rng(0)
    found = {
        "observations": rng.standard_normal((9, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 4, (6, 2)).astype(np.float32),
        "rewards": rng.standard_normal(6),
        "terminations": np.array([0, 1, 0, 0, 0, 1], bool),
        "truncations": np.array([0, 0, 1, 0, 0, 0], bool),
    }
    if not spec.continuous:
        found["actions"] = np.array([-1, 2, 0, 1, 0, 2])
    if spec.masked:
        found["action_masks"] = np.ones((9, 4), bool)
    return found


def write(path, found: dict[str, np.ndarray]) -> str:
    np.savez(path, **found)
    return str(path)


def demonstrations(source: str, spec: EnvironmentSpec) -> Demonstrations:
    experiment = Experiment(demonstrations=source)
    return Demonstrations(experiment, spec, RAW)


def test_episodes_are_cut_where_they_end(tmp_path):
    found = arrays(CONTINUOUS)
    episodes = demonstrations(write(tmp_path / "a.npz", found), CONTINUOUS).episodes
    assert episodes.lengths.tolist() == [2, 1, 3]
    assert episodes.terminated.tolist() == [True, False, True]
    second = list(episodes)[1]
    np.testing.assert_array_equal(second.observations, found["observations"][3:5])
    assert second.rewards.tolist() == [found["rewards"][2]]
    # In units of the bounds, by hand.
    np.testing.assert_allclose(second.actions, [(found["actions"][2] - 1) / 3], rtol=1e-6)


def test_lengths_stand_in_for_truncations(tmp_path):
    found = arrays(CONTINUOUS)
    plain = episodes_of(found, CONTINUOUS)
    del found["truncations"]
    found["lengths"] = np.array([2, 1, 3])
    assert episodes_digest(episodes_of(found, CONTINUOUS)) == episodes_digest(plain)


SPACES = [
    spaces.Discrete(5, start=3),
    spaces.MultiDiscrete([2, 5], start=[1, -4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(np.array([-3.0, 0.0]), np.array([5.0, 0.1]), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    spaces.Box(-2, 2, (), np.float32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_come_back_as_the_environment_took_them(space):
    space.seed(1)
    taken = np.stack([space.sample() for _ in range(50)])
    recorded = actions_from_environment(space, taken)
    again = np.stack(action_converter(space)(recorded))
    assert again.dtype == space.dtype
    np.testing.assert_allclose(again, taken, rtol=1e-6, atol=1e-6)
    if isinstance(space, spaces.Box) and np.abs(space.high).max() < 1e6:
        assert np.abs(recorded).max() <= 1


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE, MASKED], ids=["real", "choice", "masked"])
def test_what_is_written_is_read(spec, tmp_path):
    episodes = episodes_of(arrays(spec), spec)
    for name in ("a.npz", "b.npz"):
        write_demonstrations(tmp_path / name, episodes, spec)
    again = demonstrations(str(tmp_path / "a.npz"), spec)
    if not spec.continuous:
        assert again.digest == episodes_digest(episodes)
    for name, column in again.episodes.columns.items():
        np.testing.assert_allclose(column, episodes.columns[name], atol=1e-6)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as file:
        assert file["actions"].dtype == spec.action_space.dtype


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Box(0, 255, (10, 5), np.uint8),
        spaces.Box(0, 255, (3, 10, 8), np.uint8),
        spaces.Box(-1, 1, (2, 2), np.float64),
    ],
    ids=str,
)
def test_observations_as_the_environment_returns_them_are_flattened(space):
    spec = replace(CONTINUOUS, observation_space=space)
    space.seed(0)
    samples = [space.sample() for _ in range(9)]
    plain = episodes_of(arrays(CONTINUOUS) | {"observations": np.stack(samples)}, spec)
    columns = flattened(space, samples)
    flat = episodes_of(arrays(CONTINUOUS) | columns, spec)
    assert episodes_digest(plain) == episodes_digest(flat)
    if not isinstance(space, spaces.Box):
        expected = np.stack([spaces.flatten(space, sample) for sample in samples])
        np.testing.assert_array_equal(plain.observations, expected)


def changed(spec: EnvironmentSpec, name: str, value) -> dict[str, np.ndarray]:
    found = arrays(spec)
    if value is None:
        del found[name]
    else:
        found[name] = value(found[name].copy()) if callable(value) else value
    return found


def put(place, number):
    def change(array):
        array[place] = number
        return array

    return change


WRONG = [
    (CONTINUOUS, "observations", None, "observations: missing"),
    (CONTINUOUS, "observations", lambda a: a[:-1], "shape (8, 3), and (9, 3) is expected"),
    (CONTINUOUS, "observations", lambda a: a[:, :2], "observations: shape (9, 2), and (9, 3) is"),
    (CONTINUOUS, "observations", put((4, 1), np.nan), "observations: NaN, infinity or beyond"),
    (CONTINUOUS, "observations", lambda a: a * np.float64(1e39), "beyond float32 in row 0"),
    (CONTINUOUS, "observations", lambda a: a.astype("U5"), "observations: <U5 (9, 3), and numbers"),
    (CONTINUOUS, "observations", np.float32(1), "observations: float32 (), and numbers"),
    (CONTINUOUS, "actions", put((5, 1), 4.1), "actions: 4.1 of step 5 is outside of -2 to 4; give"),
    (CONTINUOUS, "actions", lambda a: a[:, 0], "actions: shape (6,), and (6, 2) is expected"),
    (CONTINUOUS, "actions", lambda a: a[:5], "actions: shape (5, 2), and (6, 2) is"),
    (DISCRETE, "actions", put(2, 3), "actions: 3 of step 2 is not in Discrete(4, start=-1)"),
    (DISCRETE, "actions", lambda a: a * 1.0, "actions: float64, and integers are expected"),
    (DISCRETE, "rewards", lambda a: a[:, None], "rewards: shape (6, 1), and (6,) is expected"),
    (DISCRETE, "rewards", lambda a: a[:0], "rewards: no step; record at least one episode"),
    (DISCRETE, "rewards", put(0, np.inf), "rewards: NaN, infinity or beyond float32 in row 0"),
    (DISCRETE, "terminations", None, "terminations: missing"),
    (DISCRETE, "terminations", np.full(6, 2), "terminations: numbers other than 0 and 1"),
    (DISCRETE, "terminations", np.zeros(6), "truncations: missing, or the last step ends no ep"),
    (DISCRETE, "truncations", None, "truncations: missing, or the last step ends"),
    (DISCRETE, "lengths", np.array([2, 4]), "lengths: the episodes end elsewhere than by term"),
    (DISCRETE, "lengths", np.array([2, 2]), "lengths: not the numbers of steps of episodes; they"),
    (DISCRETE, "lengths", np.array([2, -1, 5]), "lengths: not the numbers of steps"),
    (MASKED, "action_masks", put((3, 1), False), "the action of step 2 is one that its mask forb"),
    (MASKED, "action_masks", lambda a: a[:, :3], "action_masks: shape (9, 3), and (9, 4) is"),
    (DISCRETE, "rewads", np.zeros(6), "rewads: no array of demonstrations, which have action"),
]


@pytest.mark.parametrize(("spec", "name", "value", "words"), WRONG, ids=[w[-1][:50] for w in WRONG])
def test_what_is_wrong_is_told_with_its_name(spec, name, value, words, tmp_path):
    source = write(tmp_path / "a.npz", changed(spec, name, value))
    with pytest.raises(UsageError) as caught:
        _ = demonstrations(source, spec).episodes
    text = str(caught.value)
    assert text.startswith(f"--demonstrations: {source}: ") and words in text and "\n" not in text
    assert text.count(source) == 1


@pytest.mark.parametrize("name", ["no.npz", "no/where.npz"])
def test_a_file_that_is_not_there_is_named_once(name, tmp_path):
    source = str(tmp_path / name)
    with pytest.raises(UsageError) as caught:
        _ = demonstrations(source, DISCRETE).episodes
    assert str(caught.value) == f"--demonstrations: {source}: there is no such file"


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", **changed(DISCRETE, "rewards", np.array([Bomb()] * 6, object)))
    with pytest.raises(UsageError, match="Object arrays cannot be loaded"):
        read_npz(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UsageError, match=r"no sound \.npz file"):
        read_npz(tmp_path / "b.npz")


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_unread(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rewards.npy", bytes(1000))
    # The size in the list of entries, which is read before an entry is unpacked.
    data = path.read_bytes()
    path.write_bytes(data.replace((1000).to_bytes(4, "little"), (3 << 30).to_bytes(4, "little")))
    with pytest.raises(UsageError, match=r"MB that unpack to 3\.2 GB, and at most 1\.1 GB are"):
        read_npz(path)


def test_a_header_that_promises_more_than_there_is_costs_no_memory(tmp_path):
    head = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}
    np.lib.format.write_array_header_1_0(head, shape)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("rewards.npy", head.getvalue() + bytes(80))
    with pytest.raises(UsageError, match="no memory for its arrays"):
        read_npz(tmp_path / "a.npz")


@settings(max_examples=60)
@given(data=st.data())
def test_damage_is_told_in_one_line_or_changes_nothing(data, tmp_path_factory):
    """Bytes of the file that are changed, cut off or doubled."""
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    np.savez(path, **arrays(MASKED))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    match data.draw(st.sampled_from(["change", "cut", "double"])):
        case "change":
            damaged = bytearray(whole)
            damaged[place] ^= data.draw(st.integers(1, 255))
        case "cut":
            damaged = whole[:place]
        case _:
            damaged = whole[:place] + whole[place // 2 :]
    path.write_bytes(damaged)
    try:
        found = demonstrations(str(path), MASKED).episodes
    except UsageError as error:
        text = str(error)
        assert text.startswith(f"--demonstrations: {path}: ") and "\n" not in text
    else:
        assert episodes_digest(found) == episodes_digest(episodes_of(arrays(MASKED), MASKED))


MIXED = spaces.Dict(
    {"place": spaces.Box(-1, 1, (2,), np.float32), "door": spaces.Tuple([spaces.Discrete(3)])}
)


class CutEachSecond(Sampled):
    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=self.episodes)

    def step(self, action):
        observation, _, ended, *_ = super().step(action)
        cut = ended and self.episodes % 2 == 0
        return observation, self.t / 3, ended and not cut, cut, {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("observed", [OBSERVED, MIXED], ids=["Box", "Dict"])
def test_a_dataset_of_minari_says_the_same_as_a_file(observed, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari", reason="uv run --group demonstrations pytest")
    pytest.importorskip("h5py", reason="uv run --group demonstrations pytest")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    spec = replace(CONTINUOUS, observation_space=observed)
    env = CutEachSecond(observed, spec.action_space)
    env.action_space.seed(0)
    steps: dict[str, list] = {name: [] for name in ("actions", "rewards", "terms", "truncs")}
    seen, buffers = [], []
    for number in range(4):
        own, rows = {name: [] for name in steps}, [env.reset()[0]]
        while not own["terms"] or not (own["terms"][-1] or own["truncs"][-1]):
            own["actions"].append(env.action_space.sample())
            following, *numbers, _ = env.step(own["actions"][-1])
            rows.append(following)
            for name, value in zip(("rewards", "terms", "truncs"), numbers, strict=True):
                own[name].append(value)
        seen += rows
        for name in steps:
            steps[name] += own[name]
        columns = rows
        if observed is MIXED:
            columns = {
                "place": [row["place"] for row in rows],
                "door": ([row["door"][0] for row in rows],),
            }
        numbers = own["rewards"], own["terms"], own["truncs"]
        buffers.append(EpisodeBuffer(number, None, None, columns, own["actions"], *numbers))
    spaces_of_it = {"observation_space": observed, "action_space": spec.action_space}
    minari.create_dataset_from_buffers("test/mine-v0", buffers, **spaces_of_it)
    file = flattened(observed, seen) | {
        "actions": np.array(steps["actions"]),
        "rewards": np.array(steps["rewards"]),
        "terminations": np.array(steps["terms"]),
        "truncations": np.array(steps["truncs"]),
    }
    of_file = demonstrations(write(tmp_path / "a.npz", file), spec)
    of_minari = demonstrations("test/mine-v0", spec)
    assert of_minari.digest == of_file.digest
    assert of_minari.episodes.terminated.tolist() == [True, False, True, False]
    with pytest.raises(UsageError, match=r"other/none-v0: no file, no run folder and no Minari"):
        _ = demonstrations("other/none-v0", spec).episodes


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_episodes_that_minaris_collector_records_are_learned_from(tmp_path, monkeypatch):
    """As docs/demonstrations.md has it."""
    for name in ("minari", "h5py", "jax"):
        pytest.importorskip(name, reason="uv run --group demonstrations pytest")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    page = (ROOT / "docs" / "demonstrations.md").read_text()
    (code,) = re.findall(r"```\n(import gymnasium\nimport minari.*?)```", page, re.DOTALL)
    exec(code, {})
    flags = ("--iterations", "2", "--episodes-per-iter", "2", "--local", "--workers", "0")
    words = ("--algorithm", "bc", "--demonstrations", "cartpole/mine-v0", *flags)
    run_ok(*words, "--output", "run", cwd=tmp_path, environment=dict(os.environ))
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 3
