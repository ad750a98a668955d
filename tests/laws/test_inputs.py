"""Runs that see a picture beside numbers: the same bytes on any number of workers, on Flame, and
after a resume; evaluated, watched and exported."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from flame_rl import Policy, Trainer
from tests.environments import TwoInputs
from tests.flame_fixtures import run as run_on
from tests.helpers import environment_id, run_here
from tests.learners import make_config
from tests.runs import SEVERAL_UPDATES

AUXILIARY = {
    "auxiliary": ("tests.learner.test_losses:NextObservation",),
    "auxiliary_weights": (0.1,),
}
RUNS = [
    pytest.param({"algorithm": "ppo", "frame_stack": 2}, id="ppo, stacked"),
    pytest.param({"algorithm": "ppo", "overlap": True, "memory": "gru"}, id="ppo with memory"),
    pytest.param({"algorithm": "ppo", "shared_torso": True, **AUXILIARY}, id="several losses"),
    pytest.param({"algorithm": "dqn", "n_step": 3, "prioritized": True}, id="dqn"),
    pytest.param({"algorithm": "sac", "normalize_observations": True}, id="sac"),
    pytest.param(
        {"algorithm": "ppo", "overlap": True, "policy_observations": ("camera",)}, id="critic's own"
    ),
    pytest.param({"algorithm": "sac", "policy_observations": ("arm", "lamp")}, id="sac critic's"),
]


def config_of(**options):
    name = "TwoInputsAndNumbers" if options["algorithm"] == "sac" else "TwoInputs"
    return make_config(environment_id(name), **SEVERAL_UPDATES | options)


def digests(trainer: Trainer) -> list[str]:
    """Of the weights after each of the iterations that are left."""
    return [trainer.learner.weights_digest() for _ in trainer]


@pytest.mark.parametrize("options", RUNS)
def test_workers_and_a_stop_change_no_byte(options, tmp_path):
    with Trainer(config_of(workers=0, **options)) as trainer:
        whole = digests(trainer)
    assert len(set(whole)) == SEVERAL_UPDATES["iterations"]
    with Trainer(config_of(workers=2, **options)) as trainer:
        begun = [trainer.train() and trainer.learner.weights_digest() for _ in range(2)]
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt") as trainer:
        assert begun + digests(trainer) == whole


OWN = """
import gymnasium
import numpy as np

class Robot(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        arm=gymnasium.spaces.Box(-1, 1, (2,)),
        camera=gymnasium.spaces.Box(0, 255, (3, 6, 6), np.uint8),
        task=gymnasium.spaces.Text(9),
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self):
        arm = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        camera = self.np_random.integers(0, 256, (3, 6, 6), np.uint8)
        return {"arm": arm, "camera": camera, "task": "reach"}

    def step(self, action):
        self.t += 1
        return self.seen(), float(action), self.t == 5, False, {}

gymnasium.register("Robot-v0", Robot)
"""


def test_flame_gives_the_same_bytes(memory, project, local, tmp_path):
    (project / "robot.py").write_text(OWN)
    flags = ("--env", "robot:Robot-v0", "--observe", "camera", "arm", "--algorithm", "ppo")
    flags += ("--episodes-per-iter", "9", "--iterations", "2", "--hidden-sizes", "6")
    finished = run_on(project, tmp_path, memory.environment, *flags)
    assert finished.code == 0, finished.err
    assert "using Flame Runner" in finished.out and finished.err == ""
    first = "a picture of 6 x 6, channels: 3 (they come first, and are put last) and 2 numbers"
    assert f"Observation: {first}" in finished.out
    assert finished.metrics == local(*flags)
    memory.assert_nothing_left()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = run_here(
        *("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "9"),
        *("--algorithm", "ppo", "--hidden-sizes", "6", "--output", "run"),
        *("--env", environment_id("DrawnInputs"), "--observe", "camera", "arm"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_evaluated_watched_and_resumed(trained):
    saved = json.loads((trained / "run" / "config.json").read_text())
    assert saved["experiment"]["observe"] == ["camera", "arm"]
    words = ("evaluate", "run", "--episodes", "3", "--json", "--local", "--workers", "0")
    found = run_here(*words, cwd=trained)
    assert found.returncode == 0 and json.loads(found.stdout)["episodes"] == 3
    shown = run_here("watch", "run", "--video", "film.gif", "--episodes", "1", cwd=trained)
    assert shown.returncode == 0, shown.stderr
    with Image.open(trained / "film.gif") as film:
        assert film.n_frames == 5
    resumed = run_here("--resume", "run", "--iterations", "3", "--local", cwd=trained)
    assert resumed.returncode == 0, resumed.stderr


def test_the_check_takes_pictures_for_pictures(tmp_path):
    """Their numbers are not far from 1, because the network scales them."""
    words = ("--observe", "camera", "arm", "--seconds", "0.2", "--json")
    done = run_here("check", "--env", environment_id("DrawnInputs"), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a picture of 5 x 6, channels: 1 and 2 numbers" in done.stdout
    assert "go beyond 100" not in done.stdout


def test_the_file_computes_what_acts(trained):
    pytest.importorskip("onnx", reason="uv run --group export pytest")
    onnxruntime = pytest.importorskip("onnxruntime", reason="uv run --group export pytest")
    done = run_here("export", "run", "policy.onnx", cwd=trained)
    assert done.returncode == 0, done.stderr
    policy = Policy.load(trained / "run")
    session = onnxruntime.InferenceSession(trained / "policy.onnx")
    env = TwoInputs()
    observations = [env.reset(seed=seed)[0] for seed in range(30)]
    flat = [np.concatenate([o["arm"], o["camera"].ravel()]) for o in observations]
    (logits,) = session.run(["logits"], {"observation": np.array(flat, np.float32)})
    assert logits.argmax(axis=1).tolist() == [int(a) for a in policy.act_all(observations)]
    assert np.ptp(logits, axis=0).min() > 1e-5
