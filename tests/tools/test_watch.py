"""Watching a policy: the episodes of an evaluation, in films."""

import importlib.util
import json
import re
import sys
import threading

import gymnasium
import numpy as np
import pytest
from PIL import Image, ImageSequence

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.system.errors import Interrupted, UsageError
from flame_rl.tools.watching import show
from tests.environments import Fast
from tests.helpers import (
    ROOT,
    assert_same_episodes,
    described,
    environment_id,
    refusal,
    request_for,
    run_here,
    run_ok,
    shown_on_a_terminal,
    snapshot_for,
)

BLIND = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}


def needs(module: str):
    reason = f"the optional package {module} is not installed (uv run --group video pytest)"
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=reason)


def has_opengl() -> bool:
    try:
        from mujoco.egl import GLContext

        GLContext(8, 8).free()
    except Exception:
        return False
    return True


needs_opengl = pytest.mark.skipif(not has_opengl(), reason="no OpenGL by EGL is found")


def play(video, name="Drawn", stop=None, **options):
    env_id = environment_id(name)
    snapshot = snapshot_for(described(env_id))
    request = request_for(env_id, **options)
    return snapshot, request, show(snapshot, request, video, stop or threading.Event())


def test_a_film_shows_every_step_of_every_episode_once(tmp_path):
    video = tmp_path / "film.gif"
    snapshot, request, episodes = play(video, explore=False)
    shown = list(episodes)
    simulator = PlainSimulator(request.environment)
    assert_same_episodes(shown, collect_episodes(snapshot, request, simulator))
    with Image.open(video) as film:
        pictures = [np.asarray(p.convert("RGB")) for p in ImageSequence.Iterator(film)]
        assert film.info["duration"] == 40
    expected = [(t, number, 0) for number in (1, 2, 3) for t in range(7)]
    assert [tuple(picture[3, 4]) for picture in pictures] == expected


def test_only_the_pictures_that_a_film_keeps_are_drawn(tmp_path):
    Fast.drawn.clear()
    video = tmp_path / "film.gif"
    *_, episodes = play(video, "Fast", explore=False)
    assert [episode.length for episode in episodes] == [6, 6, 6]
    # 21 pictures at 125 a second: a GIF of at most 50 a second has every third.
    assert Fast.drawn == [0, 3, 6, 2, 5, 1, 4]
    with Image.open(video) as film:
        assert film.n_frames == 7


@pytest.mark.parametrize(
    "video", ["film.gif", pytest.param("film.mp4", marks=needs("imageio_ffmpeg"))]
)
def test_pictures_of_another_size_are_fitted_into_the_first(tmp_path, video):
    import imageio.v2 as imageio

    list(play(tmp_path / video, "Growing", indices=(0,))[-1])
    pictures = np.array([picture[..., :3] for picture in imageio.get_reader(tmp_path / video)])
    assert pictures.shape == (7, 40, 60, 3)
    # A row that begins in the wrong place has the other colour there.
    for rows in pictures[:, 5:-5].astype(int):
        assert (rows[:, 20, 0] > 150).all() and (rows[:, 20, 2] < 50).all()
        assert (rows[:, 40, 0] < 50).all() and (rows[:, 40, 2] > 150).all()


def test_ctrl_c_ends_the_film_which_is_still_one(tmp_path):
    stop = threading.Event()
    video = tmp_path / "film.gif"
    *_, episodes = play(video, stop=stop)
    next(episodes)
    stop.set()
    with pytest.raises(Interrupted):
        next(episodes)
    with Image.open(video) as film:
        assert film.n_frames >= 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ObservationAction", "needs a parameter render_mode"),
        ("WronglyDrawn", "render returned .* where 'rgb_array' promises a picture"),
    ],
)
def test_environments_that_cannot_be_shown_are_named(tmp_path, name, message):
    with pytest.raises(UsageError, match=message):
        list(play(tmp_path / "film.gif", name)[-1])


@pytest.mark.parametrize("name", ["film.avi", "nowhere/film.gif"])
def test_films_that_cannot_be_written_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="--video"):
        list(play(tmp_path / name)[-1])


@needs("pygame")
@needs("imageio_ffmpeg")
def test_the_episodes_shown_are_those_of_an_evaluation(trained):
    import imageio_ffmpeg

    for explore in ((), ("--explore",)):
        flags = ("run", "--episodes", "2", "--seed", "7", *explore)
        evaluated = run_here("evaluate", *flags, "--workers", "1", "--json", cwd=trained)
        watched = run_ok("watch", *flags, "--video", "f.mp4", cwd=trained, environment=BLIND)
        assert watched.stderr == ""
        shown = re.findall(r"Episode (\d): return ([\d.]+) in (\d+) steps", watched.stdout)
        assert [number for number, *_ in shown] == ["0", "1"]
        rewards = [float(reward) for _, reward, _ in shown]
        figures = json.loads(evaluated.stdout)
        spread = [figures["reward_min"], figures["reward_max"]]
        assert [min(rewards), max(rewards)] == pytest.approx(spread, abs=0.051)
        described = run_here("evaluate", *flags, "--workers", "0", cwd=trained).stdout
        assert watched.stdout.splitlines()[0] == described.splitlines()[0]
        frames, _ = imageio_ffmpeg.count_frames_and_secs(str(trained / "f.mp4"))
        assert frames == sum(int(steps) + 1 for *_, steps in shown)


def test_the_untrained_policy_is_the_one_that_training_begins_with(tmp_path):
    from flame_rl.run.trainer import TrainConfig, Trainer

    env = environment_id("Drawn")
    watched = run_ok(
        *("watch", "--env", env, "--untrained", "--episodes", "3", "--video", "film.gif"),
        cwd=tmp_path,
        environment=BLIND,
    )
    rewards = [float(r) for r in re.findall(r"return ([\d.]+) in 6 steps", watched.stdout)]
    with Trainer(TrainConfig(env=env, local=True, workers=0)) as trainer:
        assert np.mean(rewards) == pytest.approx(trainer.evaluate(3).reward_mean, abs=0.051)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "there is no display for a window .*--video FILE.mp4"),
        (("nothing",), "error: nothing: "),
        (
            ("--env", environment_id("TwoSteps"), "--untrained"),
            "cannot be shown: it needs .* render_mode",
        ),
        (("--video", "f.gif"), "name a run folder, or --env NAME --untrained"),
        (("run", "--untrained", "--video", "f.gif"), "name a run folder"),
        (("--env", "ant", "--video", "f.gif"), "name a run folder"),
        (("run", "--episodes", "0"), "--episodes: at least 1"),
        (("nothing", "--video", "f.gif"), "nothing"),
    ],
)
def test_mistakes_exit_with_2(trained, arguments, message):
    assert re.search(message, refusal("watch", *arguments, cwd=trained, environment=BLIND))


@pytest.mark.parametrize("missing", ["imageio_ffmpeg", "pygame"])
def test_a_missing_package_is_named_with_the_remedy(tmp_path, monkeypatch, missing):
    if missing == "pygame" and importlib.util.find_spec("imageio_ffmpeg") is None:
        pytest.skip("imageio_ffmpeg is not installed")
    monkeypatch.setitem(sys.modules, missing, None)
    flags = ("--env", "cartpole", "--untrained", "--video", "film.mp4")
    said = refusal("watch", *flags, cwd=tmp_path, environment=BLIND)
    assert re.search(rf"{missing.replace('_', '-')} .*--group video", said), said


def test_where_there_is_no_opengl_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)
    flags = ("--env", "hopper", "--untrained", "--video", "film.gif")
    said = refusal("watch", *flags, cwd=tmp_path, environment=BLIND | {"MUJOCO_GL": "egl"})
    assert re.search(r"no OpenGL is found .*apt-get install libegl1 libgl1", said)


@needs_opengl
def test_the_camera_goes_with_the_robot(monkeypatch):
    from flame_rl.tools.watching import follow_robot

    monkeypatch.setenv("MUJOCO_GL", "egl")
    env = gymnasium.make("Ant-v5", render_mode="rgb_array", width=64, height=64).unwrapped
    follow_robot(env.mujoco_renderer)
    env.reset(seed=0)
    pictures = [env.render().astype(int)]
    position = env.data.qpos.copy()
    position[0] += 40
    env.set_state(position, env.data.qvel)
    pictures.append(env.render().astype(int))
    env.close()
    # The ant is the only thing with more red than green.
    here, far = [np.sum(p[..., 0] > p[..., 1] + 40) for p in pictures]
    assert here > 50 and far == pytest.approx(here, rel=0.2)


def test_a_terminal_shows_a_bar_when_a_film_takes_long(tmp_path):
    env = environment_id("SlowlyDrawn")
    text = shown_on_a_terminal(
        *(ROOT / "main.py", "watch", "--env", env, "--untrained", "--episodes", "2"),
        *("--video", str(tmp_path / "film.gif")),
        columns=100,
    )
    counts = [int(n) for n in re.findall(r"Drawing, (\d+) env steps", text)]
    assert counts == sorted(counts) and {3, 8} <= set(counts), text
    assert re.findall(r"Episode (\d): return", text) == ["0", "1"], text
