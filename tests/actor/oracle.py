"""Episodes as an oracle plays them: one environment, one step, one agent and one row at a time."""

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.randomness import noise_generator, reset_seed
from flame_rl.nets.acting import ActingPolicy


class Alone:
    """A Gymnasium environment as one of several agents, of which it has one."""

    possible_agents = ("alone",)

    def __init__(self, env: gymnasium.Env) -> None:
        self.env = env

    def observation_space(self, agent):
        return self.env.observation_space

    def action_space(self, agent):
        return self.env.action_space

    def reset(self, seed):
        return [{"alone": each} for each in self.env.reset(seed=seed)]

    def step(self, actions):
        return [{"alone": each} for each in self.env.step(actions["alone"])]


def plainly(env, snapshot, request, index: int):
    """For each agent its observations, actions, rewards and how it ended."""
    policy, agents = ActingPolicy(snapshot), env.possible_agents
    key = request.run_seed, request.iteration, index
    generators = {name: noise_generator(*key, agent=i) for i, name in enumerate(agents)}
    before, states = dict.fromkeys(agents), {name: policy.states(8) for name in agents}

    def row_of(agent, observation):
        flat = spaces.flatten(env.observation_space(agent), observation)
        if request.environment.agent_number:
            flat = np.concatenate([flat, np.eye(len(agents))[agents.index(agent)]])
        return np.asarray(flat, np.float32)

    def act(agent, observation):
        rows = np.zeros((8, policy.observation_dim), np.float32)
        noise = np.zeros((8, policy.head.noise_width))
        (before[agent],) = policy.draw_noise(generators[agent], 1, before[agent])
        rows[0], noise[0] = observation, before[agent]
        return policy.act(rows, noise, states[agent])[0]

    def taken(space, action):
        if isinstance(space, spaces.Box):
            middle, half = (space.low + space.high) / 2.0, (space.high - space.low) / 2.0
            return np.clip(middle + half * action, space.low, space.high).astype(space.dtype)
        return action + space.start if isinstance(space, spaces.MultiDiscrete) else action

    observations, _ = env.reset(seed=reset_seed(*key))
    seen = {agent: [row_of(agent, observations[agent])] for agent in agents}
    acted, paid, ends = {a: [] for a in agents}, {a: [] for a in agents}, {}
    playing, steps = list(agents), 0
    while playing:
        actions = {agent: act(agent, seen[agent][-1]) for agent in playing}
        observations, rewards, terminated, truncated, _ = env.step(
            {agent: taken(env.action_space(agent), action) for agent, action in actions.items()}
        )
        steps += 1
        for agent in list(playing):
            seen[agent].append(row_of(agent, observations[agent]))
            acted[agent].append(actions[agent])
            paid[agent].append(float(rewards[agent]))
            late = steps == request.environment.max_episode_steps
            ends[agent] = bool(terminated[agent]), bool(truncated[agent]) or late
            if any(ends[agent]):
                playing.remove(agent)
    return [(np.array(seen[a]), np.array(acted[a]), np.array(paid[a]), *ends[a]) for a in agents]


def assert_played_plainly(episodes, indices, env, snapshot, request) -> None:
    """These episodes of `episodes` are the oracle's, to the bit."""
    agents = len(env.possible_agents)
    found = {index: [e for e in episodes if e.index == index] for index in indices}
    for index in indices:
        played = plainly(env, snapshot, request, index)
        assert len(found[index]) == agents
        for episode, expected in zip(found[index], played, strict=True):
            assert episode.observations.tobytes() == expected[0].tobytes()
            assert episode.actions.tobytes() == expected[1].tobytes()
            assert episode.rewards.tobytes() == expected[2].tobytes()
            assert (episode.terminated, episode.truncated) == expected[3:]
