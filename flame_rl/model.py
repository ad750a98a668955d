"""The networks of model.py, which lies beside this package; a wheel has that file in this place."""

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

SourceFileLoader(__name__, str(Path(__file__).parents[1] / "model.py")).exec_module(
    sys.modules[__name__]
)
