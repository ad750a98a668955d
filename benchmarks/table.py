"""Tables of the benchmarks: rows measured in turn, their ratios with the spread, JSON and a plot.

Every row is measured once in each repetition, and a ratio compares rows of the same repetition, so
that other load on the machine affects all rows alike.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TypeVar

from matplotlib.figure import Figure

from flame_rl.system.machine import available_cores

Measured = TypeVar("Measured")

_PACKAGES = ("numpy", "gymnasium", "mujoco", "torch", "flamepy")


@dataclass(frozen=True)
class Ratio:
    """The rates of row `of` divided by those of row `over`, a value for each repetition."""

    of: str
    over: str
    values: tuple[float, ...]

    @property
    def spread(self) -> tuple[float, float, float]:
        """Minimum, median and maximum."""
        return min(self.values), median(self.values), max(self.values)


@dataclass(frozen=True)
class Table:
    """Rows side by side.

    Attributes:
        title: what was measured.
        unit: the unit of the rates; a greater rate is faster.
        rates: by row, a value for each repetition.
        ratios: between some of the rows.
    """

    title: str
    unit: str
    rates: dict[str, list[float]]
    ratios: list[Ratio]

    def __str__(self) -> str:
        rates = {name: (min(r), median(r), max(r)) for name, r in self.rates.items()}
        ratios = {f"{ratio.of} / {ratio.over}": ratio.spread for ratio in self.ratios}
        width = max(map(len, (*rates, *ratios, self.unit)))
        head = f"{'min':>11}{'median':>11}{'max':>11}"
        lines = [self.title, f"  {self.unit:{width}}{head}"]
        for name, spread in rates.items():
            lines.append(f"  {name:{width}}" + "".join(f"{_short(x):>11}" for x in spread))
        lines.append("  ratio")
        for name, spread in ratios.items():
            lines.append(f"  {name:{width}}" + "".join(f"{x:11.3f}" for x in spread))
        return "\n".join(lines)


def in_turn(
    rows: Mapping[str, Callable[[int], Measured]], repetitions: int
) -> dict[str, list[Measured]]:
    """Measure every row once in each repetition; rows are called with its number, from 0."""
    measured: dict[str, list[Measured]] = {name: [] for name in rows}
    for k in range(repetitions):
        for name, row in rows.items():
            measured[name].append(row(k))
    return measured


def compare(
    title: str, unit: str, rates: Mapping[str, list[float]], pairs: Sequence[tuple[str, str]]
) -> Table:
    """A table with a ratio for each pair: a row, and the row that it is compared with."""
    ratios = [
        Ratio(of, over, tuple(a / b for a, b in zip(rates[of], rates[over], strict=True)))
        for of, over in pairs
    ]
    return Table(title, unit, dict(rates), ratios)


def write(name: str, tables: Sequence[Table], folder: Path, **more: object) -> None:
    """Write NAME.json, with all measurements, and NAME.png, a plot of the ratios.

    Args:
        name: the benchmark's name.
        tables: at least one.
        folder: made if it does not exist.
        more: further entries of the JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "benchmark": name,
        "machine": machine(),
        "tables": [
            {
                "title": table.title,
                "unit": table.unit,
                "rates": table.rates,
                "ratios": [
                    dict(zip(("minimum", "median", "maximum"), ratio.spread, strict=True))
                    | {"of": ratio.of, "over": ratio.over, "values": ratio.values}
                    for ratio in table.ratios
                ],
            }
            for table in tables
        ],
    }
    data, picture = folder / f"{name}.json", folder / f"{name}.png"
    data.write_text(json.dumps(content | more, indent=2) + "\n")
    _plot(tables, picture)
    print(f"\n{data}\n{picture}", flush=True)


def machine() -> dict[str, str | int]:
    """The hardware and the versions that the rates depend on."""
    found: dict[str, str | int] = {
        "processor": _processor(),
        "cores": available_cores(),
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _plot(tables: Sequence[Table], path: Path) -> None:
    """Draw the ratios: medians as bars, with a line from minimum to maximum."""
    heights = [0.4 * len(table.ratios) + 0.6 for table in tables]
    figure = Figure(figsize=(8, 0.6 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(tables), squeeze=False, height_ratios=heights)[:, 0]
    for table, axes in zip(tables, grid, strict=True):
        for place, ratio in enumerate(table.ratios):
            low, middle, high = ratio.spread
            axes.barh(place, middle, color="0.7")
            axes.plot([low, high], [place, place], color="black", marker="|")
            axes.annotate(f" {middle:.2f}", (high, place), va="center", fontsize=8)
        names = [f"{ratio.of} / {ratio.over}" for ratio in table.ratios]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(table.title, fontsize=9, loc="left")
        axes.tick_params(axis="x", labelsize=8)
    figure.savefig(path, dpi=120)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
