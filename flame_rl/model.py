"""The networks of model.py, which lies beside this package; a wheel has that file in this place."""

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

_FILE = str(Path(__file__).parents[1] / "model.py")
SourceFileLoader(__name__, _FILE).exec_module(sys.modules[__name__])
__file__ = _FILE  # that which made the networks
