"""What the console shows while a cluster gives no sign of life."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from flame_rl import TrainConfig
from flame_rl.report import console as console_module
from flame_rl.report.console import ConsoleReporter
from flame_rl.run.results import Totals
from tests.helpers import shown_on_a_terminal, spec_of

WORDS = "0 of 2 executors are working (2 unbinding, no sign of node flame-node); giving up in {} s"


@pytest.fixture
def console() -> ConsoleReporter:
    return ConsoleReporter(TrainConfig(), spec_of(1, 2, False), True, Totals())


def test_a_wait_gets_few_lines_in_a_pipe(console, capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(console_module, "time", SimpleNamespace(perf_counter=lambda: now))
    capsys.readouterr()
    for wait in (100, 3):
        for second in range(wait):
            now += 1.0
            console.waiting(f"second {second}")
        console.waiting("")
    console.say("An executor was lost")
    lines = ["second 0", "second 30", "second 60", "second 90", "second 0", "An executor was lost"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_wait_is_counted_down_below_the_bar_of_a_terminal():
    code = f"""
import time
from tests.report.test_console import *
console = ConsoleReporter(TrainConfig(), spec_of(1, 2, False), True, Totals())
for left in (110, 109, 108):
    console.waiting({WORDS!r}.format(left))
    time.sleep(0.5)
console.waiting("")
time.sleep(0.5)
console.say("it goes on")
console.close()
"""
    text = shown_on_a_terminal(sys.executable, "-c", code, columns=60)
    assert "Traceback" not in text, text
    # Lines are wrapped at the width of the terminal, and nothing is cut off.
    seen = re.findall(r"giving\s+up\s+in\s+(\d+)\s+s", text)
    assert list(dict.fromkeys(seen)) == ["110", "109", "108"]
    assert "it goes on" in text
    assert "giving" not in text.partition("it goes on")[2]
