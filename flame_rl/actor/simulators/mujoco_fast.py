"""HalfCheetah, Hopper, Walker2d and Ant: the same bits as Gymnasium's, faster. Rewards,
termination and observations are computed for all slots together, by the same operations: control
costs, for one, are sums in float32. tests/actor/test_simulators.py compares the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import seeding

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.wire.inputs import observation_columns

if TYPE_CHECKING:
    from mujoco.batch import Batch

SLOTS = 64
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def _hopper_is_healthy(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    state = (np.abs(qpos[:, 2:]) < 100.0).all(axis=1) & (np.abs(qvel) < 100.0).all(axis=1)
    return state & (qpos[:, 1] > 0.7) & (qpos[:, 1] < np.inf) & (np.abs(qpos[:, 2]) < 0.2)


def _walker_is_healthy(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    return (qpos[:, 1] > 0.8) & (qpos[:, 1] < 2.0) & (np.abs(qpos[:, 2]) < 1.0)


def _ant_is_healthy(qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    finite = np.isfinite(qpos).all(axis=1) & np.isfinite(qvel).all(axis=1)
    return finite & (qpos[:, 2] >= 0.2) & (qpos[:, 2] <= 1.0)


@dataclass(frozen=True)
class _Robot:
    """What Gymnasium's environment adds to its MuJoCo model."""

    hidden: int  # how many coordinates, from the first, the observation leaves out
    reset_noise: float  # the scale of the noise that a reset adds to the model's first state
    normal_velocities: bool  # whether the noise of velocities is normal; otherwise it is uniform
    control_cost: float  # per squared unit of action
    # Positions [n, nq] and velocities [n, nv] -> bool [n]; while healthy, each step pays 1, and the
    # episode goes on. None: only the time limit ends it.
    is_healthy: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    velocity_limit: float | None = None  # observed velocities are clipped to it
    feels_contacts: bool = False  # whether contact forces are observed and cost reward


ROBOTS = {
    "HalfCheetah-v5": _Robot(1, 0.1, True, 0.1, None),
    "Hopper-v5": _Robot(1, 5e-3, False, 1e-3, _hopper_is_healthy, 10.0),
    "Walker2d-v5": _Robot(1, 5e-3, False, 1e-3, _walker_is_healthy, 10.0),
    "Ant-v5": _Robot(2, 0.1, True, 0.5, _ant_is_healthy, feels_contacts=True),
}
_CONTACT_COST = 5e-4


class FastMujoco(Simulator):
    """`SLOTS` robots."""

    def __init__(self, env: gymnasium.Env, time_limit: int, reward_parts: tuple[str, ...]) -> None:
        """`env` is Gymnasium's, whose model is used; `reward_parts` are names in `info`."""
        own = env.unwrapped
        super().__init__(SLOTS, observation_columns(own.observation_space), reward_parts)
        self._robot = robot = ROBOTS[own.spec.id]
        self._limit = time_limit
        self._frames = own.frame_skip
        self._dt = own.dt
        self._first = own.init_qpos, own.init_qvel
        self._bounds = own.action_space.low, own.action_space.high
        self._physics = (_OneByOne if robot.feels_contacts else _Together)(own.model)
        self._steps = np.zeros(SLOTS, np.int64)

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        (first_position, first_velocity), noise = self._first, self._robot.reset_noise
        positions = np.tile(first_position, (len(slots), 1))
        velocities = np.tile(first_velocity, (len(slots), 1))
        for position, velocity, seed in zip(positions, velocities, seeds.tolist(), strict=True):
            generator, _ = seeding.np_random(seed)
            position += generator.uniform(-noise, noise, len(position))
            if self._robot.normal_velocities:
                velocity += noise * generator.standard_normal(len(velocity))
            else:
                velocity += generator.uniform(-noise, noise, len(velocity))
        self._physics.reset(slots, positions, velocities)
        self._steps[slots] = 0
        self._observe(as_rows(slots))

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        robot, physics, rows = self._robot, self._physics, as_rows(slots)
        clipped = np.clip(actions[rows], *self._bounds)
        before = physics.x[rows].copy()
        physics.step(clipped, slots, self._frames)
        velocity = (physics.x[rows] - before) / self._dt
        costs = robot.control_cost * np.add.reduce(np.square(clipped), axis=1)
        parts = {"reward_forward": velocity, "reward_ctrl": -costs}
        if physics.contacts is not None:
            felt = np.clip(physics.contacts[rows], -1.0, 1.0)
            contact_costs = _CONTACT_COST * np.add.reduce(np.square(felt), axis=1)
            parts["reward_contact"] = -contact_costs
            costs = costs + contact_costs
        if robot.is_healthy is None:
            self.rewards[rows] = velocity - costs
        else:
            healthy = robot.is_healthy(physics.positions[rows], physics.velocities[rows])
            parts["reward_survive"] = healthy
            self.rewards[rows] = velocity + healthy - costs
            self.terminated[rows] = ~healthy
        for place, name in enumerate(self.part_names):
            self.reward_parts[rows, place] = parts[name]
        self._observe(rows)
        self._steps[rows] += 1
        self.truncated[rows] = self._steps[rows] >= self._limit

    def _observe(self, rows: slice | np.ndarray) -> None:
        robot, physics = self._robot, self._physics
        positions = physics.positions[rows, robot.hidden :]
        velocities = physics.velocities[rows]
        if robot.velocity_limit is not None:
            velocities = np.clip(velocities, -robot.velocity_limit, robot.velocity_limit)
        middle = positions.shape[1]
        end = middle + velocities.shape[1]
        # A value beyond float32 becomes infinite here and is reported as such later.
        with np.errstate(over="ignore"):
            self.observations[rows, :middle] = positions
            self.observations[rows, middle:end] = velocities
            if physics.contacts is not None:  # without the world's own body
                self.observations[rows, end:] = np.clip(physics.contacts[rows, 6:], -1.0, 1.0)


class _Together:
    """Physics that steps all slots, up to the last that has been used, in one call of MuJoCo:
    `positions` and `velocities`, float64 [W, nq] and [W, nv], and `x`, float64 [W], the robot's
    position along the track; `contacts` is None."""

    def __init__(self, model: mujoco.MjModel) -> None:
        from mujoco.batch import Batch, SimulationError  # MuJoCo 4.0 and later

        self._make = partial(Batch, model, nthread=1)
        self._error = SimulationError
        self.contacts = None
        self._use(self._make(1))

    def _use(self, batch: Batch) -> None:
        self._batch, self._controls = batch, batch.bind("ctrl")
        self.positions, self.velocities = batch.bind("qpos"), batch.bind("qvel")
        self.x = self.positions[:, 0]

    def reset(self, slots: np.ndarray, positions: np.ndarray, velocities: np.ndarray) -> None:
        count = self._batch.nsim
        if slots[-1] >= count:
            # No larger than needed: stepping all of a batch is quicker than stepping a part of it.
            larger = self._make(int(slots[-1]) + 1)
            larger.state[:count] = self._batch.state
            self._use(larger)
        self._batch.reset(slots, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        self.positions[slots] = positions
        self.velocities[slots] = velocities
        self._batch.forward(slots)

    def step(self, controls: np.ndarray, slots: np.ndarray, frames: int) -> None:
        self._controls[as_rows(slots)] = controls
        try:
            self._batch.step(None if len(slots) == self._batch.nsim else slots, nstep=frames)
        except self._error as error:
            slot = int(error.ids[0])
            text = f"step raised {self._batch.error(slot)}"
            raise SimulatorError("simulator", text, slot) from error


class _OneByOne:
    """As `_Together`, one slot after another in a single MjData, which stays in the processor's
    cache; W is `SLOTS`. `contacts` are the contact forces, float64 [W, 6 * bodies],
    which need a second call after each step that a batch does not make."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._data = mujoco.MjData(model)
        self._states = np.zeros((SLOTS, mujoco.mj_stateSize(model, _STATE)))
        # The integration state begins with the time, the positions and the velocities.
        start = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_TIME)
        self.positions = self._states[:, start : start + model.nq]
        self.velocities = self._states[:, start + model.nq : start + model.nq + model.nv]
        self.x = np.zeros(SLOTS)
        self.contacts = np.zeros((SLOTS, 6 * model.nbody))
        self._forces = self._data.cfrc_ext.reshape(-1)
        self._torso = self._data.xpos[1]

    def reset(self, slots: np.ndarray, positions: np.ndarray, velocities: np.ndarray) -> None:
        for slot, position, velocity in zip(slots.tolist(), positions, velocities, strict=True):
            mujoco.mj_resetData(self._model, self._data)
            self._data.qpos[:] = position
            self._data.qvel[:] = velocity
            mujoco.mj_forward(self._model, self._data)
            self._take(slot)

    def step(self, controls: np.ndarray, slots: np.ndarray, frames: int) -> None:
        model, data, states, held = self._model, self._data, self._states, self._data.ctrl
        for slot, control in zip(slots.tolist(), controls, strict=True):
            mujoco.mj_setState(model, data, states[slot], _STATE)
            held[:] = control
            try:
                mujoco.mj_step(model, data, nstep=frames)
                mujoco.mj_rnePostConstraint(model, data)
            except mujoco.FatalError as error:
                raise SimulatorError("simulator", f"step raised {error}", slot) from error
            self._take(slot)

    def _take(self, slot: int) -> None:
        mujoco.mj_getState(self._model, self._data, self._states[slot], _STATE)
        self.x[slot] = self._torso[0]
        self.contacts[slot] = self._forces
