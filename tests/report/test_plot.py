"""Learning curves: which runs are one setting, their mean, and the pictures."""

import numpy as np
import pytest

from flame_rl.commands.plot import plot
from flame_rl.report import figures
from flame_rl.report.runs import (
    columns_of,
    final_score,
    group_runs,
    mean_curve,
    read_run,
    smooth,
    window_of,
)
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from tests.runs import write_run

SETTINGS = {"iterations": 20, "steps_per_iter": 100, "learning_rate": 0.01}


def config_of(**others) -> TrainConfig:
    return TrainConfig(**SETTINGS | others)


TINY = config_of()


@pytest.fixture
def make_run(tmp_path):
    """Writes a run into a folder of this name."""
    return lambda name, *given, **options: write_run(tmp_path / name, *given, **options)


def test_a_run_is_read_over_steps_and_over_seconds_without_a_torn_last_line(make_run):
    folder = make_run("a", TINY, range(20))
    with (folder / "metrics.csv").open("a") as file:
        file.write("20,60")
    run = read_run(folder)
    np.testing.assert_allclose(run.env_steps, np.arange(100, 2100, 100))
    np.testing.assert_allclose(run.seconds, np.arange(2, 42, 2))
    np.testing.assert_allclose(run.values, np.arange(20))
    assert run.config == TINY


SEEDS = {
    "seed 0": TINY,
    "seed 1, elsewhere": config_of(seed=1, workers=3, local=True, task_timeout=9.0),
    "ppo": config_of(algorithm="ppo", learning_rate=0.5),
    "quicker": config_of(learning_rate=0.02),
    "hopper": config_of(env="hopper", learning_rate=0.3),
}
# A short name is the same environment, and another device another setting.
DEVICES = {
    "short": config_of(env="cartpole"),
    "whole": config_of(env="CartPole-v1", seed=1),
    "card": config_of(env="cartpole", device="cuda"),
}


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        (
            SEEDS,
            [
                ("CartPole-v1: reinforce, learning rate 0.01", ["seed 0", "seed 1, elsewhere"]),
                # Another algorithm or environment is difference enough.
                ("CartPole-v1: ppo", ["ppo"]),
                ("CartPole-v1: reinforce, learning rate 0.02", ["quicker"]),
                ("Hopper-v5: reinforce", ["hopper"]),
            ],
        ),
        (
            DEVICES,
            [
                ("CartPole-v1: reinforce, device auto", ["short", "whole"]),
                ("CartPole-v1: reinforce, device cuda", ["card"]),
            ],
        ),
    ],
    ids=["seeds", "devices"],
)
def test_seeds_of_one_setting_are_grouped_and_named_by_what_differs(configs, expected, make_run):
    runs = [read_run(make_run(name, config, range(20))) for name, config in configs.items()]
    settings = group_runs(runs)
    found = [(f"{each.env}: {each.name}", [r.folder.name for r in each.runs]) for each in settings]
    assert found == expected
    alone = columns_of(settings[2:], ("reward_mean", "env_steps"))
    assert [each.name for each in alone] == ["reward_mean", "env_steps"] * len(settings[2:])


def test_the_same_seed_twice_counts_once(make_run, monkeypatch, capsys):
    """The run with more iterations; folders without a run do not keep the others from a curve."""
    folders = [make_run("a", TINY, range(5)), make_run("b", TINY, range(20))]
    other = make_run("c", config_of(seed=1), range(20))
    empty = make_run("empty", config_of(seed=2), [])
    drawn = []
    monkeypatch.setattr(figures, "plot_settings", lambda settings, *_: drawn.extend(settings))
    plot([str(folder) for folder in (*folders, other, empty)])
    assert [run.folder.name for setting in drawn for run in setting.runs] == ["b", "c"]
    told = capsys.readouterr().err
    assert "empty: no iteration was finished" in told and "it is left out" in told
    with pytest.raises(UsageError, match="none of these folders holds a run"):
        plot([str(empty), str(empty.parent / "nowhere")])


def test_the_mean_of_seeds_is_taken_at_equal_steps_not_at_equal_iterations(make_run):
    # 9 iterations are not smoothed. Both lines are y = x / 100, in steps of different lengths.
    config = config_of(iterations=9)
    short = read_run(make_run("a", config, np.arange(1.0, 10), steps=100.0))
    long = read_run(
        make_run("b", config_of(iterations=9, seed=1), np.arange(3.0, 30, 3), steps=300.0)
    )
    x, mean, (low, high) = mean_curve((short, long), "env_steps", 0.0)
    # From where both have begun to where the last one ends; the short one then stays at 9.
    assert (x[0], x[-1]) == (300, 2700)
    np.testing.assert_allclose(mean, (np.minimum(x / 100, 9) + x / 100) / 2)
    # A quarter of all resamples of two seeds has one of them alone.
    np.testing.assert_allclose([low, high], [np.minimum(x / 100, 9), x / 100])


def test_runs_of_any_length_are_averaged_over_the_same_centred_window(make_run):
    """Whether their iterations have 30 env steps or 100."""
    rng = np.random.default_rng(0)
    runs = [
        read_run(make_run(str(seed), config_of(seed=seed), rng.normal(size=size), steps=steps))
        for seed, (size, steps) in enumerate([(40, 100.0), (100, 30.0)])
    ]
    window = window_of(group_runs(runs))
    assert window == 200.0
    for run, steps in zip(runs, (100, 30), strict=True):
        expected = [
            np.mean([v for j, v in enumerate(run.values) if abs(j - i) * steps <= 100])
            for i in range(len(run.values))
        ]
        np.testing.assert_allclose(smooth(run, window), expected)


def test_a_final_score_is_the_mean_of_the_last_tenth(make_run):
    values = np.random.default_rng(0).normal(size=57)
    assert final_score(read_run(make_run("a", TINY, values))) == pytest.approx(values[-5:].mean())
    assert final_score(read_run(make_run("b", TINY, values[:9]))) == values[8]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_command_draws_many_settings(make_run, tmp_path, capsys, suffix):
    rng = np.random.default_rng(0)
    folders = [
        make_run(
            f"{env} {algorithm} {seed}",
            config_of(env=env, algorithm=algorithm, seed=seed),
            rng.normal(size=20) + np.arange(20),
        )
        for env in ("cartpole", "hopper")
        for algorithm in ("reinforce", "a2c", "ppo")
        for seed in (0, 1)
    ]
    picture = tmp_path / f"curves.{suffix}"
    plot([*map(str, folders), "--output", str(picture)])
    data = picture.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG") and len(data) > 50_000
    else:
        text = data.decode()
        for words in ("Hopper-v5", "ppo (2 seeds)", "environment steps", "its 95 % interval"):
            assert words in text
    done = capsys.readouterr()
    assert done.out.startswith(f"Curves: {picture}\n\nenv ") and done.err == ""


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, in place of their files."""
    kept = []
    monkeypatch.setattr(figures, "save_and_show", lambda figure, path: kept.append(figure))
    yield kept
    figures.plt.close("all")


@pytest.fixture
def figure_of(drawn):
    """Draws settings and returns the figure."""

    def draw(*folders):
        figures.plot_settings(group_runs([read_run(folder) for folder in folders]), "curves.png")
        return drawn.pop()

    return draw


def test_one_run_has_its_spread_and_its_evaluations(make_run, drawn):
    folder = make_run("a", TINY, range(20))
    lines = (folder / "metrics.csv").read_text().splitlines()
    stds = ["reward_std", *["2.0"] * 20]
    rows = [f"{line},{std}\n" for line, std in zip(lines, stds, strict=True)]
    (folder / "metrics.csv").write_text("".join(rows))
    (folder / "evaluations.csv").write_text(
        "iteration,env_steps,reward_mean,reward_low,reward_high\n9,1000,12.0,11.0,15.0\n"
    )
    figures.plot_run(folder)
    (axes,) = drawn[0].axes
    band, interval = axes.collections[0], axes.containers[0].lines[2][0]
    assert band.get_datalim(axes.transData).intervaly.tolist() == [-2, 21]
    np.testing.assert_allclose(interval.get_segments(), [[[1000, 11], [1000, 15]]])
    _, labels = axes.get_legend_handles_labels()
    assert [label.split()[0] for label in labels] == ["±", "reinforce", "evaluation,"]


def test_seeds_are_a_line_in_a_band_up_to_the_slowest_end(make_run, figure_of):
    figure = figure_of(
        *(
            make_run(f"{algorithm} {seed}", config, [seed] * 20, seconds=1.0 + 4 * seed)
            for algorithm in ("a2c", "ppo")
            for seed in (0, 1, 2)
            for config in [config_of(algorithm=algorithm, seed=seed)]
        )
    )
    for axes, end in zip(figure.axes, (2000, 180), strict=True):
        thick = [line for line in axes.get_lines() if line.get_linewidth() > 1]
        thin = [line for line in axes.get_lines() if line not in thick]
        assert [line.get_xdata()[-1] for line in thick] == [end, end]
        assert [set(line.get_ydata()) for line in thin] == [{0.0}, {1.0}, {2.0}] * 2
        assert end <= axes.get_xlim()[1]
        for line, band in zip(thick, axes.collections, strict=True):
            assert set(line.get_ydata()) == {1.0}
            # Of 27 resamples one has the lowest seed alone, more than 2.5 %.
            assert band.get_datalim(axes.transData).intervaly.tolist() == [0, 2]
            assert line.get_zorder() > band.get_zorder()


def test_equal_scores_of_finalists_are_seen(drawn):
    figures.draw_finals("final.png", [("trial 3", [500.0] * 3), ("trial 1", [9.0])], "title")
    (axes,) = drawn[0].axes
    places = axes.get_lines()[0].get_xdata()
    assert len(set(places)) == 3 and places.mean() == 0


def test_the_legend_of_long_names_fits_into_the_picture(make_run, figure_of):
    rates = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
    figure = figure_of(
        *(
            make_run(str(rate), config_of(algorithm="ppo", learning_rate=rate), range(20))
            for rate in rates
        )
    )
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(rates)
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda folder: (folder / "timing.csv").unlink(), (), "a: no iteration was finished"),
        (
            lambda folder: (folder / "config.json").write_text("{}"),
            (),
            "a holds no run that can be",
        ),
        (lambda folder: (folder / "metrics.csv").write_text("iteration\n"), (), "a: no iteration"),
        (
            lambda folder: add_column(folder, "x", ["7" * 140_000] * 20),
            (),
            "a holds .*field larger",
        ),
        (lambda folder: None, ("--output", "curves.pdf"), r"must end in \.png or \.svg"),
        (lambda folder: None, ("--output", "no/a.png"), "--output: no/a.png: .* folder that exi"),
        (lambda folder: None, ("--columns", "los"), "no .los.; it has iteration, "),
        (
            lambda folder: add_column(folder, "loss", [""] * 20),
            ("--columns", "reward_mean", "loss"),
            "the column loss has no values",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named(make_run, change, words, message):
    folder = make_run("a", TINY, range(20))
    change(folder)
    with pytest.raises(UsageError, match=message):
        plot([str(folder), *words])


def add_column(folder, name: str, values) -> None:
    path = folder / "metrics.csv"
    header, *rows = path.read_text().splitlines()
    lines = [f"{row},{value}" for row, value in zip(rows, values, strict=True)]
    path.write_text("\n".join([f"{header},{name}", *lines]) + "\n")


def test_columns_are_curves_of_their_own(make_run, tmp_path, drawn):
    runs = []
    for seed in (0, 1):
        folder = make_run(f"seed {seed}", config_of(seed=seed), range(20))
        add_column(folder, "reward_forward", [100 * seed + i for i in range(20)])
        runs.append(folder)
    settings = group_runs([read_run(folder) for folder in runs])
    columns = columns_of(settings, ("reward_forward", "reward_mean"))
    assert [setting.name for setting in columns] == ["reward_forward", "reward_mean"]
    for setting, slope in zip(columns, (100, 0), strict=True):
        for seed, run in enumerate(setting.runs):
            np.testing.assert_array_equal(run.values, slope * seed + np.arange(20))
    assert columns_of(settings, ("reward_mean",))[0].name == settings[0].name

    names = ("reward_mean", "reward_forward")
    plot([*map(str, runs), "--columns", *names, "--output", str(tmp_path / "parts.png")])
    (figure,) = drawn
    (axes,) = figure.axes  # seconds would show the same
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "return of an episode"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{name} (2 seeds)" for name in names]
    highest = {line.get_label(): line.get_ydata()[-1] for line in axes.get_lines()}
    # Means of two seeds in the last iteration; the window has no other.
    assert highest["reward_mean (2 seeds)"] == pytest.approx(19)
    assert highest["reward_forward (2 seeds)"] == pytest.approx(69)


def test_a_legend_shows_any_name_as_it_is(make_run, tmp_path):
    """matplotlib hides a label that begins with an underscore, and reads $ as mathematics."""
    folder, picture = make_run("a", TINY, range(20)), tmp_path / "curves.svg"
    names = ["_cost", "gain_$", "$x_1$", "$x_{$"]
    for name in names:
        add_column(folder, name, range(20))
    with figures.matplotlib.rc_context({"svg.fonttype": "none"}):
        plot([str(folder), "--columns", *names, "--output", str(picture)])
    text = picture.read_text().replace("\u200b", "")
    for name in names:
        assert f">{name} (seed 0)</text>" in text


def test_iterations_without_a_value_are_left_out(make_run):
    """A warm-up has no loss."""
    folder = make_run("a", TINY, range(3), steps=100.0, seconds=2.0)
    add_column(folder, "loss", ["", 1.5, 2.5])
    (setting,) = columns_of(group_runs([read_run(folder)]), ("loss",))
    (run,) = setting.runs
    assert run.values.tolist() == [1.5, 2.5] and run.env_steps.tolist() == [200, 300]
    assert run.seconds.tolist() == [4, 6]


def test_evaluations_are_drawn_where_all_runs_of_an_environment_have_some(
    make_run, tmp_path, drawn, capsys
):
    for env in ("cartpole", "hopper"):
        for seed in (0, 1):
            means = [(4, 100 + seed), (9, 200), (14, 300), (19, 400 + 2 * seed)]
            some = means if env == "cartpole" or seed == 0 else ()
            config = config_of(env=env, seed=seed)
            make_run(f"{env} {seed}", config, range(20), evaluations=some)
    plot([str(tmp_path)])
    (figure,) = drawn
    first, _, second, _ = figure.axes
    assert first.get_title(loc="left") == "CartPole-v1"
    assert first.get_ylabel() == "return in evaluations"
    assert second.get_ylabel() == "return of an episode"
    thick = max(first.get_lines(), key=lambda line: line.get_linewidth())
    assert thick.get_xdata()[[0, -1]].tolist() == [500, 2000]
    assert thick.get_ydata()[[0, -1]].tolist() == [100.5, 401]
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    # Of two values with a difference of 2, the interval reaches 12.7 on either side.
    assert rows == [
        ["CartPole-v1", "reinforce", "evaluation", "2", "401.0", "388.3", "to", "413.7"],
        ["Hopper-v5", "reinforce", "training", "2", "18.5", "18.5", "to", "18.5"],
    ]


def test_a_folder_of_runs_stands_for_every_run_below_it(make_run, tmp_path, drawn, capsys):
    for name, seed in (("all/a", 0), ("all/deep/b", 1), ("all/deep/c", 2)):
        make_run(name, config_of(seed=seed), range(20))
    (tmp_path / "all" / "notes").mkdir()
    plot([str(tmp_path / "all"), str(tmp_path / "all" / "a")])
    (figure,) = drawn
    (label,) = [text.get_text() for text in figure.legends[0].get_texts()]
    assert label == "reinforce (3 seeds)"
    assert capsys.readouterr().err == ""


def test_lines_beyond_the_seventh_are_dashed(make_run, figure_of):
    rates = [0.1 / (number + 1) for number in range(9)]
    configs = [config_of(learning_rate=rate) for rate in rates]
    figure = figure_of(*(make_run(f"{n}", each, range(20)) for n, each in enumerate(configs)))
    lines = figure.axes[0].get_legend_handles_labels()[0]
    styles = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert [style for _, style in styles] == ["-"] * 7 + ["--"] * 2 and len(set(styles)) == 9
