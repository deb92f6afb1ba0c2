"""``ZetaRepeatWrapper``: exploration by random actions that are held for a random time."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac_wrappers._exploration import STATE_WORDS, ExploratoryHold, UniformStream, space_to_explore
from taac_wrappers._repeat import executed_action_space, has_reports, one_frame_info, was_repeated
from taac_wrappers._validation import (
    ActionCheck,
    require_bounded,
    require_count,
    require_env,
    require_float,
    require_int,
    require_schedule,
    require_seed,
    require_state,
)


class ZetaRepeatWrapper(gym.Wrapper, RecordConstructorArgs):
    """With probability epsilon, replaces the agent's action by a uniform one and holds that for a random time.

    Temporally extended epsilon-greedy exploration (SAC-EZ): whenever no exploratory action is running, epsilon is
    tested once. If it hits, a uniform action is drawn and held for n frames in total, n from the zeta distribution
    truncated to ``max_repeat``: P(n) proportional to ``n ** -mu``, 1 <= n <= ``max_repeat``. While it is held, the
    agent's actions are checked but not executed. One step of this wrapper is one step of the inner environment, and
    the end of an episode ends the hold.

    ``epsilon`` is a number, or ``(start, end, frames)``: linear from start to end over that many frames, then constant.
    The frames count across episodes; ``state_dict()`` keeps them, and the place in the random stream.

    Info, on every step:
        * ``frames`` (int): 1, or what an inner wrapper reports,
        * ``executed_action`` (ndarray): a copy of the action the environment received (store this one in a replay),
        * ``repeated`` (bool): whether a held exploratory action was executed again,
        * ``exploring`` (bool): whether the exploratory action replaced the agent's.

    A vector version exists: `taac_wrappers.vector.ZetaRepeatWrapper`.

    Example:
        >>> import gymnasium as gym
        >>> from taac_wrappers import ZetaRepeatWrapper
        >>> env = ZetaRepeatWrapper(gym.make("MountainCarContinuous-v0"), epsilon=0.4, mu=1.0, max_repeat=3)
        >>> _ = env.reset(seed=6)
        >>> for _ in range(6):
        ...     info = env.step([0.0])[-1]
        ...     print(info["executed_action"].round(3), info["exploring"], info["repeated"])
        [0.] False False
        [-0.529] True False
        [0.574] True False
        [0.574] True True
        [0.574] True True
        [0.] False False

    Change log:
        * v0.1.0 - Added
    """

    _exploratory_action: Any
    _remaining: int  # frames for which the exploratory action is still to be held
    _previous_executed: np.ndarray | None  # kept only if an inner wrapper reports it

    def __init__(
        self,
        env: gym.Env,
        *,
        epsilon: float | tuple[float, float, int] = 0.01,
        mu: float = 2.0,
        max_repeat: int = 5,
    ):
        """Wrap ``env``.

        Args:
            env: the environment to wrap, with a Discrete or a bounded floating-point Box action space. Above
                ``ClipAction``, which takes any action, the bounds are those it clips to.
            epsilon: the probability to explore, or its linear schedule ``(start, end, frames)``.
            mu: the exponent of the zeta distribution, above 0; larger means shorter.
            max_repeat: the longest hold, at least 1.
        """
        require_env("ZetaRepeatWrapper", env)
        schedule = require_schedule("epsilon", epsilon)
        mu = require_float("mu", mu, above=0)
        max_repeat = require_int("max_repeat", max_repeat, minimum=1)
        space = require_bounded("ZetaRepeatWrapper", space_to_explore(env))
        recorded = schedule if isinstance(epsilon, (tuple, list)) else schedule[0]
        RecordConstructorArgs.__init__(self, epsilon=recorded, mu=mu, max_repeat=max_repeat)
        gym.Wrapper.__init__(self, env)
        self.executed_action_space = executed_action_space(env)
        self._reports = has_reports(env)
        self._copy_action = ActionCheck(env.action_space)
        # The copy of a Discrete action, a NumPy integer, would be no array.
        self._as_array = np.array if isinstance(space, spaces.Discrete) else np.ndarray.copy
        self._start, self._end, self._schedule_frames = schedule
        self._draw_hold = ExploratoryHold(space, mu=mu, longest=max_repeat)
        self._uniform = UniformStream()
        self._frames = 0
        self._begin_episode()

    @property
    def current_epsilon(self) -> float:
        """The probability to explore at the present frame."""
        if self._frames >= self._schedule_frames:
            return self._end
        return self._start + (self._end - self._start) * self._frames / self._schedule_frames

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and end a running hold; a ``seed`` also restarts this wrapper's own random stream."""
        seed = require_seed("seed", seed)
        result = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._uniform = UniformStream(seed)
        self._begin_episode()
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Execute ``action``, or the exploratory one in its place."""
        current = self._copy_action(action)
        exploratory, remaining = self._exploratory_action, self._remaining
        held = remaining > 0
        # Most frames come after the schedule; they need not pay for the call of the property.
        epsilon = self._end if self._frames >= self._schedule_frames else self.current_epsilon
        self._uniform.mark()
        exploring = held or self._uniform() < epsilon
        if exploring:
            if not held:
                exploratory, remaining = self._draw_hold(self._uniform)
            remaining -= 1
            current = exploratory.copy()
        executed = self._as_array(current)
        try:
            observation, reward, terminated, truncated, inner = self.env.step(current)
        except Exception:  # a step that is refused, as before the first reset, has explored nothing
            self._uniform.rewind()
            raise
        self._exploratory_action, self._remaining = exploratory, remaining
        own = {"frames": 1, "executed_action": executed, "repeated": held}
        info = one_frame_info(inner, own, self._reports)
        info["exploring"] = exploring
        if self._reports and "executed_action" in inner:
            info["repeated"] = was_repeated(held, inner, self._previous_executed)
            self._previous_executed = inner["executed_action"].copy()
        self._frames += info["frames"]
        return observation, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives an episode: the frames so far, on which the schedule depends, and the random stream."""
        return {"frames": self._frames, "stream": self._uniform.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` returned; a bad one raises and changes nothing."""
        arrays = require_state(state, {"frames": (), "stream": (STATE_WORDS,)})
        frames, stream = require_count("state['frames']", arrays["frames"]), UniformStream.at(arrays["stream"])
        self._frames, self._uniform = frames, stream

    def _begin_episode(self) -> None:
        self._exploratory_action = None
        self._remaining = 0
        self._previous_executed = None
