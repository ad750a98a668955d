"""What cannot be done is said in a sentence, before it takes memory or changes a file."""

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from threading import Thread

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl import Policy, TrainConfig, Trainer
from flame_rl.commands.evaluate import evaluate
from flame_rl.commands.train import resumed_config, train
from flame_rl.report.console import ConsoleReporter
from flame_rl.run import checkpoint
from flame_rl.run.checks import environment_warnings
from flame_rl.run.folder import refuse_modules_in
from flame_rl.run.results import Totals
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.config import names_of
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.environments import Base
from tests.helpers import (
    contents,
    environment_id,
    finished_run,
    refusal,
    run_here,
    run_main,
    run_ok,
    run_script,
)

SMALL = ("--local", "--workers", "0", "--iterations", "2", "--episodes-per-iter", "2")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(tmp_path_factory, *SMALL)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--hidden-sizes", "100000", "100000"), "--hidden-sizes: (100000, 100000) would take"),
        (("--hidden-sizes", *["2"] * 32), "a policy of 66 layers, activations among them; at"),
    ],
)
def test_a_mistake_is_one_sentence(flags, words, tmp_path):
    done = run_here(*SMALL, *flags, cwd=tmp_path)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert done.stderr.startswith("error: ") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--iterations", "1"), "--iterations: 2 are done already"),
        (("--output", "elsewhere"), "--output: a resumed run stays in its folder"),
    ],
)
def test_a_resume_that_cannot_be_changes_nothing(flags, words, run):
    before = contents(run)
    assert words in refusal("--resume", str(run), *flags, cwd=run.parent)
    assert before == contents(run)


COMMANDS = {
    "evaluate": ("evaluate", "broken", "--local", "--workers", "0", "--episodes", "1"),
    "watch": ("watch", "broken", "--video", "film.gif"),
    "plot": ("plot", "broken"),
    "profile": ("profile", "--resume", "broken", "--local", "--workers", "1"),
}
if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime"):
    COMMANDS["export"] = ("export", "broken", "policy.onnx")
CONFIGURED = ("plot", "profile")
ACTING = tuple(COMMANDS.keys() - {"plot"})


def of_another_version(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"gamma"', '"discount"'))
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"flameCP0" + path.read_bytes()[8:])


def a_pipe_for(name: str, folder: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    # Who opens the pipe reads that it is empty, and does not wait for ever.
    Thread(target=lambda: (folder / name).open("wb").close(), daemon=True).start()


@pytest.mark.parametrize(
    ("damage", "commands", "words"),
    [
        (shutil.rmtree, COMMANDS, "No such file"),
        (lambda folder: (shutil.rmtree(folder), folder.mkdir()), COMMANDS, "broken holds no "),
        (lambda folder: (shutil.rmtree(folder), folder.touch()), COMMANDS, "broken"),
        (
            lambda folder: shutil.rmtree(folder / "checkpoints"),
            ACTING,
            "broken holds no sound checkpoint",
        ),
        (of_another_version, ACTING, "not a checkpoint|no such field"),
        (of_another_version, CONFIGURED, "discount: there is no such field"),
        (partial(a_pipe_for, "config.json"), CONFIGURED, "not a regular file: 'broken/conf"),
        (partial(a_pipe_for, "metrics.csv"), ("plot",), "not a regular file: 'broken/metrics.csv'"),
    ],
    ids=["missing", "empty", "a-file", "no-checkpoint", "version", "config", "pipe", "csv-pipe"],
)
def test_a_broken_run_folder_is_named_by_every_command(damage, commands, words, run, tmp_path):
    damage(Path(shutil.copytree(run, tmp_path / "broken")))
    for name in commands:
        done = run_here(*COMMANDS[name], cwd=tmp_path)
        assert done.returncode == 2 and done.stdout == "", (name, done)
        assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
        assert re.search(words, done.stderr), (name, done.stderr)
        # One sentence, and a line for each damaged checkpoint.
        lines = done.stderr.splitlines()
        assert all(".ckpt: " in line for line in lines[1:]), lines


def test_a_run_of_env_steps_is_not_lengthened_by_iterations(tmp_path):
    config = TrainConfig(env_steps=20, local=True, workers=0)
    (tmp_path / "config.json").write_text(config.to_json())
    with pytest.raises(UsageError, match="--iterations: the run ends by --env-steps 20"):
        resumed_config(tmp_path, ["--resume", str(tmp_path), "--iterations", "500"])
    for words in (["--env-steps", "30"], ["--env-steps", "None", "--iterations", "500"]):
        resumed_config(tmp_path, ["--resume", str(tmp_path), *words])


def test_a_checkpoint_of_absurd_size_takes_no_memory(run, tmp_path):
    found = checkpoint.read_checkpoint(run / "checkpoints" / "00000002.ckpt")
    config = TrainConfig.from_data(found.config).changed(hidden_sizes=(40_000, 40_000))
    state = checkpoint.RunState(found.totals, found.learner)
    data = checkpoint.encode_checkpoint(state, 1.0, found.spec, config)
    (tmp_path / "absurd.ckpt").write_bytes(data)
    with pytest.raises(UsageError, match=r"--hidden-sizes: .* would take at least"):
        Trainer.load(tmp_path / "absurd.ckpt", local=True, workers=0)


@pytest.mark.parametrize("environment", ["cartpole", {"seed": 1}])
def test_another_environment_is_a_dictionary(environment, run):
    with pytest.raises(UsageError, match="environment: a dictionary of env, env_kwargs, wrapper"):
        Trainer.load(run, environment=environment)


def test_a_model_that_is_no_python_is_named_with_its_line(tmp_path):
    (tmp_path / "nets.py").write_text("import torch\n\ndef policy(:\n")
    with pytest.raises(UsageError, match=r"nets\.py, line 3: SyntaxError: "):
        Trainer(TrainConfig(model=tmp_path / "nets.py", local=True, workers=0))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("width = hidden\n", "line 1: NameError: name 'hidden' is not defined"),
        ("def policy(spec, config):\n    return gain\n", "line 2: NameError: name 'gain'"),
        ("def policy(spec, config):\n    return spec.width\n", "line 2: AttributeError: .*'width'"),
        ("import torch\ndef policy(*_):\n    torch.zeros(2, -1)\n", "line 3: RuntimeError: "),
    ],
)
def test_what_a_model_raises_is_named_with_its_line(text, error, tmp_path):
    (tmp_path / "nets.py").write_text(text)
    with pytest.raises(UsageError, match=rf"nets\.py, {error}.*; correct it there"):
        Trainer(TrainConfig(model=tmp_path / "nets.py", local=True, workers=0))


def test_after_its_end_a_trainer_says_so():
    trainer = Trainer(TrainConfig(local=True, workers=0, episodes_per_iter=2))
    trainer.close()
    for use in (trainer.train, lambda: next(iter(trainer)), lambda: trainer.evaluate(2)):
        with pytest.raises(UsageError, match="this Trainer is closed"):
            use()


ONE_EPISODE = ("--iterations", "1", "--episodes-per-iter", "1")


@pytest.mark.parametrize(("text", "workers"), [("Lengthy", "0"), ("Lines", "1"), ("Escapes", "1")])
def test_an_exceptions_text_hides_no_traceback_and_commands_no_terminal(text, workers, tmp_path):
    env = environment_id(f"{text}Shouting")
    flags = ("--env", env, *ONE_EPISODE, "--local", "--workers", workers)
    done = run_here(*flags, "--output", "run", cwd=tmp_path)
    errors = done.stderr
    assert done.returncode == 1
    assert "error: an episode failed in 3 attempts: step raised RuntimeError: " in errors
    # Both exceptions, with file and line of each.
    assert errors.count('environments.py", line ') == 2, errors[:2000]
    assert len(errors) < 10_000
    assert all(c.isprintable() or c == "\n" for c in errors)
    assert ("characters …" in errors) == (text != "Escapes")
    if text == "Escapes":
        assert r"\x1b[31m\x1b]0;title\x07" in errors


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_child_of_an_environment_that_forks_is_no_second_learner(workers, tmp_path):
    env = environment_id("OfForks")
    here = ("--env", env, *ONE_EPISODE, "--local", "--workers", workers)
    done = run_main(*here, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training Complete!") == 1
    assert "ValueError: in the fork" in done.stderr


TEN, LIMITED, CUT = map(environment_id, ("Ten", "LimitedTen", "CutTen"))
NO_LIMIT = f"--evaluate-every: there is no time limit of {TEN}"
NO_EFFECT = f"--max-episode-steps: 8 has no effect: {CUT} has a time limit of 5 steps"


@pytest.mark.parametrize(
    ("env", "workers", "flags", "words"),
    [
        (TEN, "0", ("--evaluate-every", "1", "--max-episode-steps", "0"), NO_LIMIT),
        (TEN, "0", ("--evaluate-every", "1"), None),
        (TEN, "0", ("--evaluate-every", "1", "--max-episode-steps", "8"), None),
        (LIMITED, "0", ("--evaluate-every", "1", "--max-episode-steps", "30"), None),
        (CUT, "1", ("--max-episode-steps", "8"), NO_EFFECT),
        (CUT, "0", ("--evaluate-every", "1", "--max-episode-steps", "5"), None),
    ],
)
def test_what_a_time_limit_does_not_do_is_said_at_the_start(env, workers, flags, words, tmp_path):
    here = ("--local", "--workers", workers, "--iterations", "1", "--episodes-per-iter", "2")
    done = run_ok("--env", env, *here, *flags, cwd=tmp_path)
    assert done.stderr.count("warning: ") == (words is not None)
    cut = f"{env} has no time limit that Gymnasium knows: episodes are cut after 1,000 "
    assert done.stdout.count(cut) == (env == TEN and "--max-episode-steps" not in flags)
    assert words is None or f"warning: {words}" in done.stderr


@pytest.mark.parametrize(
    ("env", "flags", "warns", "steps"),
    [
        (LIMITED, ("--warm-up-steps", "100"), True, 0),
        (LIMITED, ("--warm-up-steps", "30", "--env-steps", "30"), False, 1),
        (TEN, ("--warm-up-steps", "100", "--steps-per-iter", "10"), True, 0),
        (TEN, ("--warm-up-steps", "100"), False, 0),
        (TEN, ("--warm-up-steps", "3"), False, 1),
    ],
)
def test_a_run_that_learns_nothing_says_so(env, flags, warns, steps, tmp_path):
    length = () if "--env-steps" in flags else ("--iterations", "2")
    size = () if "--steps-per-iter" in flags else ("--episodes-per-iter", "2")
    here = ("--algorithm", "dqn", "--local", "--workers", "0", *length, *size)
    done = run_ok("--env", env, *here, *flags, cwd=tmp_path)
    assert ("warning: --warm-up-steps: 100 " in done.stderr) == warns
    assert ("  Gradient steps: none; " in done.stdout) == (steps == 0)


PICTURE = spaces.Box(0, 255, (40, 50, 3), np.uint8)
NUMBERS = spaces.Box(-1, 1, (27,))
NO_PICTURE = "is taken for 6,000 single numbers, without convolutions"


@pytest.mark.parametrize(
    ("space", "words", "warning"),
    [
        (
            spaces.Dict(a=NUMBERS, b=spaces.Discrete(3)),
            "30 numbers: ['a'] 27, ['b'] one of 3 choices",
            None,
        ),
        (spaces.Box(0, 1, (10, 10), bool), "a picture of 10 x 10, channels: 1", None),
        (
            spaces.Box(0, 255, (3, 40, 50), np.uint8),
            "a picture of 40 x 50, channels: 3 (they come first, and are put last)",
            None,
        ),
        (
            spaces.Dict(a=NUMBERS, seen=PICTURE, z=spaces.Discrete(3)),
            "a picture of 40 x 50, channels: 3 and 30 numbers",
            None,
        ),
        (
            spaces.Dict(a=NUMBERS, seen=spaces.Box(0, 1, (40, 50, 3), np.float32)),
            "6,027 numbers: ['a'] 27, ['seen'] 6,000",
            f"observation['seen'], a Box of float32 [40, 50, 3], {NO_PICTURE}; a picture is",
        ),
        (
            spaces.Box(0, 255, (4, 10, 50, 3), np.uint8),  # stacked
            "6,000 numbers",
            f"observation, a Box of uint8 [4, 10, 50, 3], {NO_PICTURE}; a picture is a Box of",
        ),
        (spaces.Box(0, 255, (2, 600), np.uint8), "1,200 numbers", None),
    ],
)
def test_what_an_observation_is_taken_for_is_said_at_the_start(space, words, warning, capsys):
    spec = EnvironmentSpec("X-v0", space, spaces.Discrete(2), time_limit=9)
    ConsoleReporter(TrainConfig(), spec, False, Totals())
    vector = isinstance(space, spaces.Box) and len(space.shape) == 1
    row = f"Observation dim: {space.shape[0]}" if vector else f"Observation: {words}"
    assert f"  {row}" in capsys.readouterr().out.splitlines()
    said = environment_warnings(TrainConfig(), spec)
    assert len(said) == (warning is not None) and all(warning in each for each in said)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("__main__", "put it into a module of its own, my_env.py, and name it my_env:Own-v0"),
        ("bounded", "name the module that registers it, too: bounded:Own-v0"),
    ],
)
def test_an_environment_that_only_this_process_knows_is_told_so(module, words, monkeypatch):
    own = type("Own", (Base,), {"__module__": module})
    monkeypatch.setitem(
        gymnasium.registry, "Own-v0", gymnasium.envs.registration.EnvSpec("Own-v0", own)
    )
    with pytest.raises(UsageError) as caught:
        Trainer(TrainConfig(env="Own-v0", local=True, workers=1))
    assert "unknown environment Own-v0" in str(caught.value)
    assert f"is registered in this process alone; {words}" in str(caught.value)


@pytest.mark.parametrize(("choices", "told"), [(10_000, False), (200_000, True)])
def test_what_many_choices_cost_is_said_at_the_start(choices, told):
    spec = EnvironmentSpec("X-v0", NUMBERS, spaces.Discrete(choices), time_limit=9)
    said = environment_warnings(TrainConfig(env="X-v0"), spec)
    assert [f"{choices:,} choices" in each for each in said] == [True] * told


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("bounds", "count"),
    [((5, 10), 0), ((-np.inf, np.inf), 2), ((np.float32([-1, -3e38]), 1), 1), ((0, np.inf), 2)],
)
def test_actions_without_bounds_are_said_in_the_algorithms_own_flags(bounds, count, algorithm):
    spec = EnvironmentSpec("X-v0", NUMBERS, spaces.Box(*bounds, (2,)), time_limit=9)
    config = TrainConfig(env="X-v0", algorithm=algorithm)
    said = environment_warnings(config, spec)
    assert len(said) == (count > 0)
    for warning in said:
        words = f"the action space of X-v0: {count} of 2 numbers have no bounds below 1,000,000"
        assert words in warning
        fields = names_of(type(config.algorithm))
        for name in re.findall(r"--([\w-]+)", warning):
            assert name.replace("-", "_") in fields
        assert ("never leave -1 to 1" in warning) == ("initial_log_std" not in fields)


AS_ANOTHER = """
import os, sys
import main
os.chdir(sys.argv.pop(1))
# Every module is imported before, also where only root can read them.
main.run_command(["--local", "--workers", "0", "--iterations", "1", "--output", "warm"])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main.main())
"""
CHOWN = """`sudo chown -R "$(id -u):$(id -g)" {}`"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files of root's")
@pytest.mark.parametrize(
    ("roots", "flags", "code", "words"),
    [
        ("runs", (), 2, "/runs belongs to user 0 (root), as after a run in the cluster's console"),
        ("run/checkpoints", ("--resume", "run"), 1, "/run/checkpoints belongs to user 0"),
        ("away", ("--output", "../away/run"), 2, "/away belongs to user 0: name another folder"),
    ],
)
def test_files_of_somebody_else_are_named_with_the_remedy(roots, flags, code, words, run, tmp_path):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others
        here = Path(folder) / "here"
        here.mkdir()
        (here / "runs").mkdir()
        (here.parent / "away").mkdir()
        shutil.copytree(run, here / "run")
        for path in (here.parent, here.parent / "away", here, *here.rglob("*")):
            if not path.is_relative_to(here.parent / roots if roots == "away" else here / roots):
                os.chown(path, 65534, 65534)
        flags = (*flags, *SMALL[:3], "--iterations", "4")
        done = run_script(AS_ANOTHER, str(here), *flags, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert (CHOWN.format(here / roots) in done.stderr) == (roots != "away")


def test_a_run_folder_that_brings_code_is_refused(tmp_path, monkeypatch):
    """Whoever made the folder could run anything on the machine of whoever opens it."""
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "mine.py").write_text(
        "from pathlib import Path\nPath('ran').touch()\ndef shaped(episode):\n"
        "    return episode.rewards\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--env", "cartpole", "--episodes-per-iter", "2", "--iterations", "1", "--workers", "0")
    assert train([*words, "--local", "--reward", "given.mine:shaped", "--output", "given"]) == 0
    (tmp_path / "ran").unlink()
    del sys.modules["given.mine"], sys.modules["given"]
    for load in (partial(resumed_config, Path("given"), []), partial(Trainer.load, "given")):
        with pytest.raises(UsageError, match=r"module given\.mine, which lies in the run folder"):
            load()
    config = TrainConfig(algorithm="ppo", policy_loss="given.mine:shaped")
    with pytest.raises(UsageError, match=r"module given\.mine, which lies in the run folder"):
        refuse_modules_in(Path("given"), config)
    Policy.load("given")  # which needs no reward
    assert not (tmp_path / "ran").exists()
    words = ("given", "--episodes", "1", "--local", "--workers", "0")
    with pytest.raises(UsageError, match=r"give --trust \(trust=True in Python\) if you trust it"):
        evaluate(words)
    assert evaluate((*words, "--trust")) == 0
    Trainer.load("given", trust=True).close()
    assert resumed_config(Path("given"), ["--trust"]).output.trust
    # The folder itself does not say that it is trusted.
    config = Path("given", "config.json")
    config.write_text(config.read_text().replace('"trust": false', '"trust": true'))
    with pytest.raises(UsageError, match="give --trust"):
        resumed_config(Path("given"), [])
    # Nor does a link lead elsewhere.
    Path("other").mkdir()
    Path("given", "mine.py").rename("other/__init__.py")
    Path("given", "mine").symlink_to("../other")
    with pytest.raises(UsageError, match="give --trust"):
        resumed_config(Path("given"), [])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_too_little_address_space_is_named(workers, tmp_path):
    command = [sys.executable, "main.py", "--local", "--output", tmp_path / "run"]
    limit = (2 << 30, 2 << 30)
    done = subprocess.run(
        [*command, "--workers", workers],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    # With workers it depends on the moment what has no room any more.
    said = r"^error: (torch cannot be loaded|can't start new thread): .*ulimit -v"
    assert re.search(said, done.stderr, re.M)
