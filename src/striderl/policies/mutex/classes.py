"""`ActorCriticMutex`, `ActorCriticFieldMutex` and `ActorCriticClimbMutex`: trained policies joined in one.

Each takes run folders (`sub_policy_paths`), ready policies (`sub_policies` with `sub_action_scales`), or both, the
ready ones first; `load_sub_policy` reads run folders that are not st_rl's, such as those of `striderl train`. They
differ in the selection: by the caller; by the engaged obstacle; or by that and whether the way leads up or down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.arguments import explicit
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.facade import StatefulMutex
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.mutex.runs import EnvSizes, LoadSubPolicy, SubPolicy, ready_policies, trained_policies
from striderl.policies.mutex.settings import ClimbSelection, FieldSelection, MutexConfig, Scale, Velocity
from striderl.policies.policy import Policy
from striderl.policies.spaces import Segments, make_spaces

GivenVelocity = float | Sequence[float]
"""A velocity command, or the range (low, high) of one."""

NO_COMMANDS: Mapping[int | str, GivenVelocity] = {}
_RESET_WORDS = {True: "all", False: "none"}


class ActorCriticMutex(StatefulMutex):
    """Sub-policies that the caller chooses between: `act_inference(obs, policy_selection)`."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        sub_policy_class_name: str | Sequence[str] = "",
        sub_policy_paths: Sequence[str | Path] = (),
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        env_action_scale: Scale = 0.5,
        *,
        privileged_obs_segments: Segments | None = None,
        sub_policies: Sequence[Policy | StatefulPolicy] = (),
        sub_action_scales: Sequence[Scale] = (),
        load_sub_policy: LoadSubPolicy | None = None,
        reset_non_selected: str | bool = "all",
        action_smoothing_buffer_len: int = 1,
        last_action_component: str = "proprioception",
        last_action_entries: tuple[int, int] | None = None,
        seed: int | None = None,
    ) -> None:
        """Join policies; the settings are those of `MutexConfig`."""
        sizes = _sizes(
            num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments, privileged_obs_segments
        )
        subs = ready_policies(sub_policies, sub_action_scales)
        subs += trained_policies(sub_policy_paths, sub_policy_class_name, sizes, load_sub_policy)
        config = MutexConfig(
            selection=None,
            env_action_scale=_scale(env_action_scale),
            smoothing_len=action_smoothing_buffer_len,
            reset_non_selected=_reset_rule(reset_non_selected),
            last_action_component=last_action_component,
            last_action_entries=_entries(last_action_entries),
        )
        super().__init__(_joined(sizes, subs, config), seed=seed)


class ActorCriticFieldMutex(StatefulMutex):
    """Sub-policies that the engaged obstacle chooses between, with velocity commands of their own."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        sub_policy_class_name: str | Sequence[str] = "",
        sub_policy_paths: Sequence[str | Path] = (),
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        env_action_scale: Scale = 0.5,
        *,
        privileged_obs_segments: Segments | None = None,
        sub_policies: Sequence[Policy | StatefulPolicy] = (),
        sub_action_scales: Sequence[Scale] = (),
        load_sub_policy: LoadSubPolicy | None = None,
        cmd_vel_mapping: Mapping[int | str, GivenVelocity] = NO_COMMANDS,
        cmd_scales: Scale | None = None,
        reset_non_selected: str | bool = "all",
        action_smoothing_buffer_len: int = 1,
        selection_component: str = "engaging_block",
        selection_first_entry: int = 1,
        cmd_component: str = "proprioception",
        cmd_entry: int = 9,
        last_action_component: str = "proprioception",
        last_action_entries: tuple[int, int] | None = None,
        seed: int | None = None,
    ) -> None:
        """Join policies; the settings are those of `MutexConfig` and `FieldSelection`.

        `cmd_vel_mapping` is {policy: velocity or (low, high)}. `cmd_scales`, one number or one per policy, defaults to
        the scales of the run folders, and to 1 for ready policies.
        """
        sizes = _sizes(
            num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments, privileged_obs_segments
        )
        subs = ready_policies(sub_policies, sub_action_scales)
        subs += trained_policies(sub_policy_paths, sub_policy_class_name, sizes, load_sub_policy)
        velocities = _velocities(cmd_vel_mapping)
        config = MutexConfig(
            selection=FieldSelection(component=selection_component, first_entry=selection_first_entry),
            env_action_scale=_scale(env_action_scale),
            smoothing_len=action_smoothing_buffer_len,
            reset_non_selected=_reset_rule(reset_non_selected),
            cmd_vel=velocities,
            cmd_scales=_cmd_scales(cmd_scales, subs, velocities),
            cmd_component=cmd_component,
            cmd_entry=cmd_entry,
            last_action_component=last_action_component,
            last_action_entries=_entries(last_action_entries),
        )
        super().__init__(_joined(sizes, subs, config), seed=seed)


class ActorCriticClimbMutex(StatefulMutex):
    """As `ActorCriticFieldMutex`, with a policy of its own for jumping down, which is the last one."""

    JUMP_OBSTACLE_ID = 3
    """The policy that jumps, counted from 0, unless `jump_obstacle_id` is set."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        sub_policy_class_name: str | Sequence[str] = "",
        sub_policy_paths: Sequence[str | Path] = (),
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        env_action_scale: Scale = 0.5,
        *,
        jump_down_policy_path: str | Path | None = None,
        jump_down_vel: GivenVelocity | None = None,
        jump_obstacle_id: int = JUMP_OBSTACLE_ID,
        jump_direction_entry: int = -1,
        privileged_obs_segments: Segments | None = None,
        sub_policies: Sequence[Policy | StatefulPolicy] = (),
        sub_action_scales: Sequence[Scale] = (),
        load_sub_policy: LoadSubPolicy | None = None,
        cmd_vel_mapping: Mapping[int | str, GivenVelocity] = NO_COMMANDS,
        cmd_scales: Scale | None = None,
        reset_non_selected: str | bool = "all",
        action_smoothing_buffer_len: int = 1,
        selection_component: str = "engaging_block",
        selection_first_entry: int = 1,
        cmd_component: str = "proprioception",
        cmd_entry: int = 9,
        last_action_component: str = "proprioception",
        last_action_entries: tuple[int, int] | None = None,
        seed: int | None = None,
    ) -> None:
        """Join policies; without a `jump_down_policy_path` the last of the ready `sub_policies` jumps down.

        `jump_down_vel=None` gives it the velocity command of the policy that jumps up, if that has one.
        """
        sizes = _sizes(
            num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments, privileged_obs_segments
        )
        subs = ready_policies(sub_policies, sub_action_scales)
        paths = [*sub_policy_paths, *([] if jump_down_policy_path is None else [jump_down_policy_path])]
        if sub_policy_paths and jump_down_policy_path is None:
            raise ValueError(
                "ActorCriticClimbMutex wants jump_down_policy_path, the run folder of the policy that jumps down"
            )
        subs += trained_policies(paths, sub_policy_class_name, sizes, load_sub_policy)
        last = len(subs) - 1
        velocities = _velocities({**cmd_vel_mapping, **({} if jump_down_vel is None else {last: jump_down_vel})})
        borrowed = {last: jump_obstacle_id} if last not in velocities and jump_obstacle_id in velocities else {}
        field = FieldSelection(component=selection_component, first_entry=selection_first_entry)
        config = MutexConfig(
            selection=ClimbSelection(field=field, jump_policy=jump_obstacle_id, direction_entry=jump_direction_entry),
            env_action_scale=_scale(env_action_scale),
            smoothing_len=action_smoothing_buffer_len,
            reset_non_selected=_reset_rule(reset_non_selected),
            cmd_vel=velocities,
            cmd_vel_like=borrowed,
            cmd_scales=_cmd_scales(cmd_scales, subs, [*velocities, *borrowed]),
            cmd_component=cmd_component,
            cmd_entry=cmd_entry,
            last_action_component=last_action_component,
            last_action_entries=_entries(last_action_entries),
        )
        super().__init__(_joined(sizes, subs, config), seed=seed)


def _sizes(
    num_actor_obs: int | ObsSpec,
    num_critic_obs: int | ObsSpec | None,
    num_actions: int | ActionSpec,
    obs_segments: Segments | None,
    critic_obs_segments: Segments | None,
    privileged_obs_segments: Segments | None,
) -> EnvSizes:
    """Return the sizes; the critic's segments have two names, an older and a newer one."""
    if critic_obs_segments is not None and privileged_obs_segments is not None:
        raise ValueError("critic_obs_segments and privileged_obs_segments are two names of one thing; give one of them")
    return EnvSizes(
        num_actor_obs=num_actor_obs,
        num_critic_obs=num_critic_obs,
        num_actions=num_actions,
        obs_segments=obs_segments,
        critic_obs_segments=privileged_obs_segments if critic_obs_segments is None else critic_obs_segments,
    )


def _joined(sizes: EnvSizes, subs: Sequence[SubPolicy], config: MutexConfig) -> MutexPolicy:
    spaces = make_spaces(
        sizes.num_actor_obs, sizes.num_critic_obs, sizes.num_actions, sizes.obs_segments, sizes.critic_obs_segments
    )
    seen = spaces.obs.select(spaces.actor)
    mutex = MutexPolicy(seen, [sub.policy for sub in subs], [sub.action_scale for sub in subs], config)
    wanted = sizes.num_actions if isinstance(sizes.num_actions, int) else sizes.num_actions.tensor
    found = mutex.action_spec.tensor.size if isinstance(wanted, int) else mutex.action_spec.tensor
    if wanted != found:
        raise ValueError(f"num_actions is {wanted}, and the sub-policies have {found}")
    return mutex


def _scale(scale: Scale) -> float | tuple[float, ...]:
    return float(scale) if isinstance(scale, (int, float)) else tuple(float(number) for number in scale)


def _entries(entries: Sequence[int] | None) -> tuple[int, int] | None:
    return None if entries is None else (int(entries[0]), int(entries[1]))


def _velocities(given: Mapping[int | str, GivenVelocity]) -> dict[int, Velocity]:
    """Return velocities by policy number; a config out of JSON has numbers as texts and ranges as lists."""
    found: dict[int, Velocity] = {}
    for policy, velocity in given.items():
        if isinstance(velocity, (int, float)):
            found[int(policy)] = float(velocity)
        elif len(velocity) == 2:
            found[int(policy)] = (float(velocity[0]), float(velocity[1]))
        else:
            raise ValueError(
                f"the velocity command of policy {policy} is a number or a range (low, high), found {velocity}"
            )
    return found


def _reset_rule(rule: str | bool) -> str:
    return _RESET_WORDS[rule] if isinstance(rule, bool) else rule


def _cmd_scales(
    given: Scale | None, subs: Sequence[SubPolicy], commanded: Sequence[int] | Mapping[int, Velocity]
) -> float | tuple[float, ...]:
    """Return what velocities are multiplied by, per policy: as given, else from the runs."""
    if not commanded:
        if given is not None:
            raise ValueError(f"cmd_scales={given} has no effect without velocity commands; give cmd_vel_mapping")
        return 1.0
    if given is not None:
        return _scale(given)
    unknown = [index for index, sub in enumerate(subs) if sub.cmd_scale is None and index in commanded]
    if unknown:
        raise ValueError(
            f"sub-policies {unknown} have velocity commands, and the config.json of their runs does not say by what "
            "velocities are multiplied (['normalization']['obs_scales']['lin_vel']); give cmd_scales"
        )
    return tuple(1.0 if sub.cmd_scale is None else float(sub.cmd_scale) for sub in subs)
