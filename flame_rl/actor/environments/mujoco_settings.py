"""Settings of MuJoCo that hold for a whole process."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import gymnasium


@contextlib.contextmanager
def quiet_about_own_models(env_id: str) -> Iterator[None]:
    """Hide MuJoCo's deprecation warnings about Gymnasium's own model files, which no user can fix.
    Others go to standard error, also after the block, and none into a MUJOCO_LOG.TXT."""
    making_own = _is_own_model(env_id)
    # A missing MuJoCo is explained by what gymnasium.make raises.
    with contextlib.suppress(ImportError):
        if may_use_mujoco(env_id):
            import mujoco

            def warn(message: str) -> None:
                if not (making_own and "deprecated" in message):
                    print(f"MuJoCo: {message}", file=sys.stderr)

            mujoco.set_mju_user_warning(warn)
    yield
    making_own = False


def may_use_mujoco(env_id: str) -> bool:
    """Whether an environment may be one of MuJoCo's: Gymnasium's own, or of a user's module."""
    return _is_own_model(env_id) or ":" in env_id


def _is_own_model(env_id: str) -> bool:
    spec = gymnasium.registry.get(env_id)
    return str(getattr(spec, "entry_point", "")).startswith("gymnasium.envs.mujoco")


def stop_clock() -> None:
    """Remove the clock that MuJoCo's Python package installs, which takes 15 % of a step of
    HalfCheetah only to fill `MjData.timer`; `mujoco.set_mjcb_time(None)` installs it again. One
    that the user has set stays, and so does the package's before MuJoCo 4.0, where each `MjData`
    installs it, and on Windows, where it is not found."""
    mujoco = sys.modules.get("mujoco")
    # Another module may have this name.
    with contextlib.suppress(AttributeError, KeyError, OSError, ValueError):
        if int(mujoco.__version__.partition(".")[0]) >= 4 and mujoco.get_mjcb_time() is None:
            functions = ctypes.CDLL(sys.modules[mujoco.mj_step.__module__].__file__)
            ctypes.c_void_p.in_dll(functions, "mjcb_time").value = None
