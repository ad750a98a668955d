"""The pages in docs/: what they tell the reader to do is done, in a copy of the project."""

import ast
import importlib.metadata
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from flame_rl.commands.check import CheckFlags
from flame_rl.commands.watch import WatchCommand
from flame_rl.settings.algorithms import ALGORITHMS, ReplaySettings, settings_class
from flame_rl.settings.checks import flag
from flame_rl.settings.config import Execution, Output
from flame_rl.settings.experiment import Experiment
from flame_rl.settings.parse import parse, parse_command
from flame_rl.settings.presets import PRESETS
from tests.helpers import ROOT, copied_package, run_forked, run_main, table

PAGES = sorted((ROOT / "docs").rglob("*.md"))
FLAGS = (ROOT / "docs" / "flags.md").read_text()
# Each section of flags.md, and the dataclass of its flags.
SECTIONS = {
    "Experiment": Experiment,
    **{name: settings_class(name) for name in ALGORITHMS},
    "Execution": Execution,
    "Output": Output,
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks, language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path):
    return copied_package(tmp_path)


# What the dependency groups of the pages' commands bring.
GROUPS = {"tune": ("optuna",), "agents": ("mpe2", "Box2D")}

# Begins the name of a package that `uv run` brings along for a command.
WITH = "--with "

# What a page's comparison of returns names; short runs have nothing to compare.
COMPARED = ("returns[0]", "untrained.reward_mean")


WORKED = ("add-an-environment", "add-an-algorithm", "add-a-replay-learner")
SHORT = (*WORKED, "add-a-layer", "rewards", "losses", "agents", "action-masks")
SHORT += ("critic-observations", "goals", "demonstrations")
SLOW = [(name, False) for name in ("several-inputs", "memory", "runs", "tuning")]
SLOW += [(name, True) for name in ("memory", *WORKED)]


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *((name, False) for name in SHORT),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW),
    ],
)
def test_a_worked_example_works(project, name, whole):
    """Not `whole`, the runs that are compared are so short that they show nothing of learning."""
    waiting: list[list[str]] = []

    def catch_up() -> None:
        if waiting:
            run(project, of_commands(waiting))
            waiting.clear()

    for language, text in blocks(ROOT / "docs" / f"{name}.md"):
        writes = text.startswith("# ")
        if language == "diff" or (language == "python" and not writes):
            catch_up()
        match language:
            case "python" if writes:
                write(project, text)
            case "python" if whole or not any(name in text for name in COMPARED):
                run(project, text)
            case "python":
                pass
            case "diff":
                change(project, text)
            case "sh" if WITH in text:
                pass  # see below
            case "sh":
                commands = [words_of(line) for line in text.splitlines()]
                waiting += commands if whole else map(shortened, commands)
                if whole:  # a limit of time for each block
                    catch_up()
            case _:
                raise AssertionError(f"a block of {language} is not run")
    catch_up()
    for metrics in project.glob("runs/*/metrics.csv"):
        assert table(metrics)[-1]["loss"], f"{metrics.parent.name} ended before its first update"


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("several-inputs", "--with minigrid "),
        ("goals", '--with gymnasium-robotics --with "mujoco<3.10" '),
    ],
)
def test_a_page_works_with_its_packages(project, name, packages):
    for package in shlex.split(packages)[1::2]:
        skip_without(package)
    found = blocks(ROOT / "docs" / f"{name}.md")
    for text in (text for language, text in found if language == "python"):
        write(project, text)
    lines = "".join(text for _, text in found if WITH in text).replace(packages, "").splitlines()
    commands = [words_of(line) for line in lines]
    assert commands
    run(project, of_commands([shortened(words) for words in commands]))


def write(project: Path, text: str) -> None:
    """Write a block that begins with the name of its file."""
    first, _, rest = text.partition("\n")
    (project / first.removeprefix("# ")).write_text(rest)


def words_of(line: str) -> list[str]:
    """The words for main.py. Skips the test where the line's dependency group is not installed."""
    command = re.fullmatch(r"uv run (?:--group (\w+) )?main\.py (.*)", line)
    assert command, line
    group, rest = command.groups()
    for module in GROUPS.get(group, ()):
        pytest.importorskip(module, reason=f"uv run --group {group} pytest")
    return shlex.split(rest)


@pytest.mark.parametrize("group", ["own", "minatar", pytest.param("atari", marks=pytest.mark.slow)])
def test_the_page_of_pictures_works(project, group):
    """Where the group of its commands is installed, its games are played."""
    for package in {"own": [], "minatar": ["minatar"], "atari": ["ale_py", "cv2"]}[group]:
        pytest.importorskip(package, reason=f"uv run --group {group} pytest")
    commands = []
    for language, text in blocks(ROOT / "docs" / "pictures.md"):
        if language == "python":
            write(project, text)
        elif {"own": "falling:", "minatar": "minatar_games:", "atari": "atari_games:"}[
            group
        ] in text:
            commands += [words_of(line) for line in text.splitlines()]
    assert commands
    run(project, of_commands([shortened(words) for words in commands]))
    assert group != "own" or (project / "runs" / "catch" / "metrics.csv").exists()


# Of a shortened command, the greatest value of each flag that it has.
MOST = {
    "--iterations": 2,
    "--env-steps": 200,
    "--steps-per-iter": 100,
    "--episodes-per-iter": 4,
    "--warm-up-steps": 50,
    "--epochs": 2,
    "--episodes": 5,
    "--trials": 2,
    "--finalists": 1,
    "--final-seeds": 1,
    "--final-env-steps": 200,
}


def shortened(words: list[str]) -> list[str]:
    """The same command, over in seconds: a few iterations of short episodes, without workers, and
    of a learner with replay a warm-up that is shorter than one."""
    for place, word in enumerate(words[:-1]):
        if word in MOST:
            words[place + 1] = str(min(MOST[word], int(words[place + 1])))
    more: dict[str, object] = {}
    if {"--iterations", "--env-steps"} & set(words):
        more = {"--workers": 0, "--max-episode-steps": 50}
        name = words[words.index("--algorithm") + 1] if "--algorithm" in words else "reinforce"
        if words[0] == "tune":
            more |= {flag: MOST[flag] for flag in MOST if flag.startswith("--final")}
        elif "--episodes-per-iter" not in words:
            more["--steps-per-iter"] = MOST["--steps-per-iter"]
        if name == "munchausen" or (
            name in ALGORITHMS and issubclass(settings_class(name), ReplaySettings)
        ):
            more["--warm-up-steps"] = MOST["--warm-up-steps"]
    elif words[0] == "evaluate":
        more = {"--workers": 0, "--episodes": MOST["--episodes"]}
    elif words[0] == "check":
        more = {"--seconds": 0.5}
    pairs = [(name, str(value)) for name, value in more.items() if name not in words]
    return [*words, *(word for pair in pairs for word in pair)]


def of_commands(commands: list[list[str]]) -> str:
    """Code that runs commands of main.py one after another."""
    return f"import main\nfor words in {commands}:\n    assert main.run_command(words) == 0, words"


def run(project: Path, code: str) -> None:
    """In that folder, as if Python had been started there."""
    (project / "block.py").write_text(code)
    environment = {"PYTHONPATH": str(project)}
    done = run_forked(project / "block.py", cwd=project, environment=environment)
    assert done.returncode == 0, "\n".join([code, done.stdout, done.stderr])


def change(project: Path, text: str) -> None:
    """Apply a block of lines that stay, go (-) and come (+)."""
    header, *lines = text.splitlines()
    path = project / header.removeprefix("--- ")
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    content = path.read_text()
    assert content.count(before) == 1, f"{path.name} has changed:\n{before}"
    path.write_text(content.replace(before, after))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_function_that_a_page_names_exists(page):
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page.read_text())
    assert named or page.name != "reinforce.md"
    for path, name in named:
        body = ast.parse((ROOT / "flame_rl" / path).read_text()).body
        for part in name.split("."):
            found = [node for node in body if getattr(node, "name", None) == part]
            assert found, f"{name_of(page)} names {path}::{name}, which is not there"
            body = found[0].body


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_exists(page):
    named = re.findall(r"`((?:flame_rl|tests|benchmarks)/[\w/.-]+)`", page.read_text())
    made = {text.partition("\n")[0].removeprefix("# ") for _, text in blocks(page)}
    for path in set(named) - made:
        assert "NAME" in path or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=name_of)
def test_links_lead_somewhere(page):
    for target, anchor in links(page):
        path = (page.parent / target) if target else page
        assert path.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            # What GitHub makes of the page's headings.
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            made = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in made, f"{name_of(page)} links to {target}#{anchor}"


def test_the_index_links_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for target, _ in links(index) if target}
    assert set(PAGES) - {index} <= linked


def links(page: Path) -> list[tuple[str, str]]:
    """Targets within the project, each with its anchor; images of HTML included."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    parts = [target.partition("#") for target in targets if "://" not in target]
    return [(target, anchor) for target, _, anchor in parts]


@pytest.mark.parametrize("section", ["Experiment", "Algorithms", "Execution", "Output"])
def test_a_flag_is_explained_once_and_in_its_section(section):
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", FLAGS, re.MULTILINE | re.DOTALL)
    flags = re.findall(r"--[\w-]+", "\n".join(re.findall(r"^- (`--.*?`): ", text, re.MULTILINE)))
    kinds = map(settings_class, ALGORITHMS) if section == "Algorithms" else [SECTIONS[section]]
    assert flags and len(flags) == len(set(flags))
    assert set(flags) <= {flag(field.name) for kind in kinds for field in fields(kind)}


def test_environments_with_presets_are_named():
    shown = dict(re.findall(r"^- `(\w+)`: (.*)$", FLAGS, re.MULTILINE))
    assert shown == {
        algorithm: ", ".join(env_id for env_id in preset if env_id) or "no other"
        for algorithm, preset in PRESETS.items()
    }


def test_the_page_of_flags_names_no_other_flag():
    known = {"--help", "--algorithm"}
    for kind in SECTIONS.values():
        known |= {flag(field.name) for field in fields(kind)}
    switches = [field for kind in (Experiment, Execution, Output) for field in fields(kind)]
    known |= {flag(f"no_{field.name}") for field in switches if isinstance(field.default, bool)}
    assert set(re.findall(r"--[a-z][\w-]*", FLAGS)) <= known


PAGE = (ROOT / "docs" / "environments-from-packages.md").read_text()
COMMANDS = re.findall(r"^uv run (.*?)main\.py (.*)$", PAGE, re.MULTILINE)
EXAMPLES = [
    re.findall(r"^uv run (.*?)main\.py (.*)$", block, re.MULTILINE)
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
# The modules of the packages that the commands install.
MODULES = {
    "minigrid": "minigrid",
    "shimmy[dm-control]": "dm_control",
    "gymnasium-robotics": "gymnasium_robotics",
}


@pytest.mark.parametrize(("packages", "words"), COMMANDS, ids=lambda text: text[:60])
def test_every_command_is_one(packages, words):
    assert set(shlex.split(packages)[::2]) <= {"--with", "--group"}
    name, *others = shlex.split(words)
    if name == "check":
        parse(others, extra=CheckFlags)
    elif name == "watch":
        parse_command(WatchCommand, others, name)
    else:
        config, _ = parse(shlex.split(words))
        assert config.experiment.env_name


def test_every_package_has_an_example():
    packages = [shlex.split(options)[1] for (options, _), *_ in EXAMPLES]
    assert packages == list(MODULES)


@pytest.mark.parametrize("example", EXAMPLES, ids=MODULES)
def test_an_example_works(example, tmp_path):
    """The environment is examined, and trained in for two short iterations."""
    for options, words in example:
        for package in shlex.split(options)[1::2]:
            skip_without(package)
        first, *others = shlex.split(words)
        if first == "check":
            done = run_main(first, *others, "--seconds", "0.5", cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "  observation   " in done.stdout and "In the way" not in done.stdout
            continue
        words = shlex.split(words)
        for name, value in {"--iterations": "2", "--steps-per-iter": "60"}.items():
            words[words.index(name) + 1] = value
        short = ("--workers", "0", "--max-episode-steps", "20")
        done = run_main(*words, *short, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Training Complete!" in done.stdout


def skip_without(package: str) -> None:
    """Skip the test where the package is not installed, or not in the version that it names."""
    name, bound, version = package.partition("<")
    if not bound:
        pytest.importorskip(MODULES[package], reason=f"uv run --with '{package}' pytest")
        return
    here = [int(part) for part in re.findall(r"\d+", importlib.metadata.version(name))]
    if here >= [int(part) for part in version.split(".")]:
        pytest.skip(f"uv run --with '{package}' pytest")
