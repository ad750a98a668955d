"""Masks as environments return them: found, read, checked, recorded, and obeyed."""

import re
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.masks import allowed_choices
from flame_rl.actor.simulators.choose import describe
from flame_rl.wire import codec
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectFailure, Environment
from tests.helpers import environment_id, request_for, snapshot_for
from tests.masked import STEPS, Choice

KINDS = ("Choice", "Beside", "Keyed", "Method", "Choices", "Bits")


ALLOWED = [
    (spaces.Discrete(3, start=4), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (spaces.Discrete(3), [True, False, False], [1, 0, 0]),
    (spaces.Discrete(3), np.array([1, 0, 1], np.float32), [1, 0, 1]),
    (spaces.Discrete(1), 1, [1]),
    (spaces.MultiDiscrete([2, 3]), (np.array([0, 1]), np.array([1, 1, 0])), [0, 1, 1, 1, 0]),
    (spaces.MultiDiscrete([2, 3]), np.array([0, 1, 1, 1, 0]), [0, 1, 1, 1, 0]),
    (spaces.MultiDiscrete([[2, 1], [1, 2]]), (((0, 1), (1,)), ((1,), (1, 0))), [0, 1, 1, 1, 1, 0]),
    (spaces.MultiBinary(3), np.array([0, 1, 2], np.int8), [1, 0, 0, 1, 1, 1]),
    (spaces.MultiBinary((1, 2)), np.array([[2, 0]], np.int8), [1, 1, 1, 0]),
    (spaces.MultiBinary(2), np.array([0, 1, 1, 1]), [0, 1, 1, 1]),
]


@pytest.mark.parametrize(("space", "mask", "expected"), ALLOWED)
def test_each_form_of_a_mask(space, mask, expected):
    found = allowed_choices(space, mask)
    assert found.tolist() == expected and found.dtype == np.uint8


@pytest.mark.parametrize(
    ("space", "mask", "text"),
    [
        (spaces.Discrete(3), np.ones(4, np.int8), "3 numbers are expected"),
        (spaces.Discrete(3), "all", "3 numbers are expected"),
        (spaces.Discrete(3), None, "3 numbers are expected"),
        (spaces.Discrete(3), np.array([1, 0, 2]), "integers from 0 to 1"),
        (spaces.Discrete(3), np.array([1, 0, 0.5]), "integers from 0 to 1"),
        (spaces.MultiDiscrete([2, 3]), (np.ones(3), np.ones(2)), "5 numbers are expected"),
        (spaces.MultiBinary(2), np.array([3, 0]), "integers from 0 to 2"),
    ],
)
def test_other_masks_are_refused(space, mask, text):
    with pytest.raises(ValueError, match=text):
        allowed_choices(space, mask)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_found_recorded_and_obeyed(kind):
    """Episodes of random policies, sampled and greedy; the environment raises at what is
    forbidden. The recorded masks are those of the environment, played again."""
    env_id = environment_id(f"Masked{kind}", "masked")
    simulator, spec = describe(Environment(env_id))
    assert spec.action_mask == ("observation" if kind == "Beside" else "info")
    assert spec.differs == ""
    seen = spaces.Box(0, STEPS, (2,), np.float32)
    assert spec.observation_space == (spaces.Dict(observations=seen) if kind == "Keyed" else seen)
    request = request_for(env_id, indices=range(40), columns=step_columns(spec))
    for explore in (True, False):
        asked = replace(request, explore=explore)
        episodes = collect_episodes(snapshot_for(spec), asked, simulator)
        assert not isinstance(episodes, CollectFailure), episodes
        # What is sent comes back, one bit a choice.
        sent = b"".join(codec.encode_result(episodes, asked))
        received = codec.decode_result(bytearray(sent), asked)
        masks = received.columns["action_masks"]
        assert masks.shape == (40 * (STEPS + 1), -(-spec.action_dim // 8))
        bits = np.unpackbits(masks, axis=1)[:, : spec.action_dim]
        assert 0.4 < bits.mean() < 0.95
        starts = np.cumsum([0, *spec.choices[:-1]])
        for number, episode in enumerate(episodes):
            own = bits[number * (STEPS + 1) :][:STEPS]
            taken = starts + episode.actions.reshape(STEPS, -1)
            assert own[np.arange(STEPS)[:, None], taken].all()
            if kind == "Beside":  # at its end it gave a mask of nothing
                assert bits[number * (STEPS + 1) + STEPS].all()
    simulator.close()


def test_masks_that_are_ignored_are_neither_read_nor_recorded():
    """A mask beside the observation is then observed like the rest of it."""
    for kind, width in (("Choice", 2), ("Beside", 7)):
        env_id = environment_id(f"Masked{kind}", "masked")
        simulator, spec = describe(Environment(env_id, action_mask=False))
        assert not spec.masked and spec.observation_dim == width
        request = request_for(env_id, indices=range(20), columns=step_columns(spec))
        failure = collect_episodes(snapshot_for(spec), request, simulator)
        assert isinstance(failure, CollectFailure) and "is forbidden" in failure.message


class Wrong(Choice):
    """Returns something else from its third step on; "reset": at its second reset."""

    resets = 0

    def __init__(self, fault):
        self.fault = fault

    def reset(self, **options):
        self.resets += 1
        return super().reset(**options)

    def info(self):
        good = super().info()
        late = self.t >= 3 if self.fault != "reset" else self.resets > 1
        if not late:
            return good
        return {
            "nothing": {"action_mask": np.zeros(5, np.int8)},
            "reset": {},
            "none": {},
            "shape": {"action_mask": np.ones(4, np.int8)},
            "minus": {"action_mask": np.full(5, -1, np.int8)},
        }[self.fault]


for _fault in ("nothing", "reset", "none", "shape", "minus"):
    gymnasium.register(f"{_fault.title()}Wrong-v0", entry_point=Wrong, kwargs={"fault": _fault})


@pytest.mark.parametrize(
    ("fault", "step", "text"),
    [
        ("nothing", 2, r"step returned \[0, 0, 0, 0, 0\], which allows nothing: allow one choice"),
        ("none", 2, "step returned none in its info, where the first reset had one"),
        ("reset", 0, "reset returned none in its info, where the first reset had one"),
        ("shape", 2, r"step returned array\(.*where 5 numbers are expected"),
        ("minus", 2, r"step returned \[255, .*\], not 0 and 1"),
    ],
)
def test_wrong_masks_are_errors_by_name(fault, step, text):
    simulator, spec = describe(Environment(f"{__name__}:{fault.title()}Wrong-v0", slots=1))
    columns = step_columns(spec)
    request = request_for(spec.env_id, indices=range(2), columns=columns)
    failure = collect_episodes(snapshot_for(spec), request, simulator)
    assert isinstance(failure, CollectFailure) and failure.kind == "invalid"
    assert re.match(f"action_mask: {text}", failure.message)
    assert failure.step == step and failure.index == (fault == "reset")
