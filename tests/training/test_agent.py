"""The agent: numpy in and out, one env or many, memory kept, seeded, and the policy left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.noise import draw
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Estimate
from striderl.policies.mutex.classes import ActorCriticFieldMutex, ActorCriticMutex
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic
from striderl.policies.stages import Remember
from striderl.training.agent import Agent

OBS = ObsSpec(
    {
        "command": ComponentSpec(shape=(3,)),
        "joints": ComponentSpec(shape=(4,)),
        "image": ComponentSpec(shape=(1, 8, 8), dtype="uint8", group="camera"),
        "allowed": ComponentSpec(shape=(5,), dtype="bool", group="action_mask"),
        "velocity": ComponentSpec(shape=(2,), group="critic"),
    }
)
BOX = BoxSpec(shape=(2,))
SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (8,)}
MEMORY = Remember(type="gru", hidden_size=6)


def build(action: ActionSpec = BOX, **settings) -> Policy:
    torch.manual_seed(0)
    return Policy(OBS, action, PolicyConfig(**{**SMALL, **settings}))


def observe(num_envs: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"command": rng.normal(size=(num_envs, 3)), "joints": rng.normal(size=(num_envs, 4))}


def test_predict_is_the_mode_of_the_policy():
    policy, obs = build(), observe(3)
    found = Agent(policy).predict(obs)
    distribution, _, _ = policy.act({name: torch.tensor(value).float() for name, value in obs.items()}, {}, {})
    assert found.dtype == np.float32 and found.shape == (3, 2)
    np.testing.assert_allclose(found, distribution.mean.detach().numpy(), atol=1e-6)


def test_sample_is_mean_plus_std_times_the_noise_of_step_and_env():
    # what a collector with seed 5 gives env i in step k: the draw named 'action', block 0, position k
    policy, obs = build(), observe(3)
    agent = Agent(policy, seed=5)
    with torch.no_grad():
        params = policy.act({name: torch.tensor(value).float() for name, value in obs.items()}, {}, {})[0]
    noise = draw(policy.head.noise_spec(), "action", seed=5, iteration=0, env_index=torch.arange(3), num_steps=64)
    for step in range(3):
        wanted = params.mean + params.std * noise[step]
        np.testing.assert_allclose(agent.sample(obs), wanted.numpy(), atol=1e-6)
    assert agent.num_samples == 3


def test_the_same_seed_gives_the_same_actions_and_another_does_not():
    obs = observe(4)
    first, again, other = (Agent(build(), seed=seed).sample(obs) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_predict_does_not_advance_the_randomness():
    obs, agent, other = observe(2), Agent(build()), Agent(build())
    agent.predict(obs)
    np.testing.assert_array_equal(agent.sample(obs), other.sample(obs))


def test_one_env_without_a_batch_dimension():
    obs, agent = observe(3), Agent(build())
    many = agent.predict(obs)
    agent.reset()
    one = agent.predict({name: value[2] for name, value in obs.items()})
    assert one.shape == (2,)
    np.testing.assert_allclose(one, many[2], atol=1e-6)
    assert agent.sample({name: value[2] for name, value in obs.items()}).shape == (2,)


def test_flat_arrays_are_the_actors_components_or_all_of_the_envs():
    obs, agent = observe(3), Agent(build())
    flat = np.concatenate([obs["command"], obs["joints"]], axis=-1)
    np.testing.assert_array_equal(agent.predict(flat), agent.predict(obs))
    agent.reset()
    assert agent.predict(flat[0]).shape == (2,)

    segments = ObsSpec.from_flat(5, {"a": 2, "b": 3})
    policy = Policy(segments, BOX, PolicyConfig(actor_obs=("a",), **SMALL))
    whole = np.random.default_rng(0).normal(size=(4, 5))
    np.testing.assert_array_equal(Agent(policy).predict(whole), Agent(policy).predict({"a": whole[:, :2]}))
    np.testing.assert_array_equal(Agent(policy).predict(whole), Agent(policy).predict(whole[:, :2]))
    with pytest.raises(ValueError, match=r"component 'a' wants shape \(2,\)"):
        Agent(policy).predict(whole[:, :4])


def test_an_image_alone_is_an_array_too():
    encode = Encode(
        components=("image",),
        model="Conv2dHeadModel",
        settings={"channels": (2,), "kernel_sizes": (3,), "strides": (2,)},
        output_size=3,
    )
    policy = build(actor=(encode,), actor_obs=("image",))
    image = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    image.flags.writeable = False  # as envs that share memory give them
    agent = Agent(policy)
    np.testing.assert_array_equal(agent.predict(image), agent.predict({"image": image}))
    with pytest.raises(TypeError, match="'image' wants uint8, found float64"):
        agent.predict({"image": image / 255.0})


# -- memory ------------------------------------------------------------------------------------------------------------


def test_whole_numbers_are_kept_or_refused():
    spec = ObsSpec({"image": ComponentSpec(shape=(1, 8, 8), dtype="uint8")})
    torch.manual_seed(0)
    agent = Agent(Policy(spec, BOX, PolicyConfig(**SMALL)))
    image = np.full((1, 8, 8), 200, np.uint16)
    np.testing.assert_array_equal(agent.predict(image), agent.predict(image.astype(np.uint8)))
    with pytest.raises(TypeError, match="'image' wants uint8, found uint16 from 200 to 1000"):
        agent.predict(np.where(np.arange(8) == 0, np.uint16(1000), image))  # 232 in a byte


def test_memory_is_kept_and_resets_per_env():
    policy = build(actor=(MEMORY,))
    agent, steps = Agent(policy), [observe(3, seed) for seed in range(4)]
    actions = [agent.predict(obs) for obs in steps[:2]]
    agent.reset(np.array([0.0, 1.0, 0.0]))
    actions += [agent.predict(obs) for obs in steps[2:]]

    obs = {name: torch.tensor(np.stack([step[name] for step in steps])).float() for name in steps[0]}
    resets = torch.zeros(4, 3, dtype=torch.bool)
    resets[2, 1] = True
    with torch.no_grad():
        whole = policy.act(obs, policy.initial_state(3), {}, resets)[0].mode()
    np.testing.assert_allclose(np.stack(actions), whole.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_dones_of_any_dtype(kind):
    agent, obs = Agent(build(actor=(MEMORY,))), observe(2)
    first = agent.predict(obs)
    second = agent.predict(obs)
    agent.reset(np.array([0, 1]).astype(kind))
    third = agent.predict(obs)
    np.testing.assert_allclose(third[1], first[1], atol=1e-6)
    assert np.abs(third[0] - second[0]).max() > 1e-4  # went on


def test_predict_and_sample_share_one_memory():
    policy, obs = build(actor=(MEMORY,)), observe(2)
    agent, other = Agent(policy), Agent(policy)
    agent.sample(obs)
    other.predict(obs)
    np.testing.assert_array_equal(agent.predict(obs), other.predict(obs))


def test_the_number_of_envs_changes_after_a_reset_only():
    plain = Agent(build())
    assert plain.predict(observe(2)).shape == (2, 2) and plain.sample(observe(3)).shape == (3, 2)  # nothing to forget
    agent = Agent(build(actor=(MEMORY,)))
    agent.predict(observe(2))
    with pytest.raises(ValueError, match=r"playing 2 envs and is given 3, .* call reset\(\) in between"):
        agent.predict(observe(3))
    with pytest.raises(ValueError, match="dones has 3 entries for 2 envs"):
        agent.reset([0, 0, 1])
    agent.reset()
    assert agent.sample(observe(3)).shape == (3, 2)
    agent.reset()
    agent.reset([1, 0])  # nothing has begun: nothing to forget


def test_an_observation_of_a_tuple_space():
    parts = {"0": ComponentSpec(shape=(3,)), "1": ComponentSpec(shape=(4,))}
    agent = Agent(Policy(ObsSpec(parts), BOX, PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,))))
    found = agent.predict((np.ones(3), np.zeros(4)))
    np.testing.assert_array_equal(found, agent.predict({"0": np.ones(3), "1": np.zeros(4)}))


# -- other policies ----------------------------------------------------------------------------------------------------


def test_choices_keep_to_their_mask():
    agent = Agent(build(DiscreteSpec(n=5, mask="allowed")))
    obs = {**observe(50), "allowed": np.zeros((50, 5), bool)}
    obs["allowed"][:, [1, 3]] = True
    actions = np.concatenate([agent.sample(obs) for _ in range(4)])
    assert actions.dtype == np.int64 and set(actions) == {1, 3}
    with pytest.raises(KeyError, match="no component 'allowed'"):
        agent.predict({name: obs[name] for name in ("command", "joints")})


def test_dict_actions_come_as_dicts():
    agent = Agent(build(DictActionSpec({"arm": BOX, "gear": DiscreteSpec(n=3)})))
    for actions in (agent.predict(observe(4)), agent.sample(observe(4))):
        assert actions["arm"].shape == (4, 2) and actions["gear"].shape == (4,)
    agent.reset()
    one = agent.sample({name: value[0] for name, value in observe(1).items()})
    assert one["arm"].shape == (2,) and one["gear"].shape == ()


def test_an_estimator_replaces_always_in_predict_and_sometimes_in_sample():
    recipe = Estimate(
        obs_components=("joints",), target_components=("command",), hidden_sizes=(4,), replace_state_prob=0.5
    )
    policy = build(actor=(recipe,), head="deterministic")
    obs = observe(200)
    other = {**obs, "command": obs["command"] + 1.0}
    np.testing.assert_array_equal(Agent(policy).predict(obs), Agent(policy).predict(other))
    seen = np.abs(Agent(policy).sample(obs) - Agent(policy).sample(other)).max(axis=-1) > 1e-4
    assert 0.35 < seen.mean() < 0.65  # half of 200, 4 standard deviations either way


def test_a_missing_component_is_named_and_privileged_ones_are_not_wanted():
    agent = Agent(build())
    with pytest.raises(KeyError, match=r"no component 'joints'. Did you mean 'joint'"):
        agent.predict({"command": np.zeros(3), "joint": np.zeros(4)})
    with_privileged = {**observe(2), "velocity": np.zeros((2, 2))}
    np.testing.assert_array_equal(agent.predict(with_privileged), agent.predict(observe(2)))


def test_the_policy_is_left_as_it_was_and_followed_when_it_learns():
    encode = Encode(
        components=("image",),
        model="Conv2dHeadModel",
        settings={"channels": (2,), "kernel_sizes": (3,), "strides": (2,), "normlayer": "batch"},
        output_size=3,
    )
    policy = build(actor=(encode,), actor_obs=("image", "joints")).train()
    policy.critic.eval()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    agent = Agent(policy)
    obs = {"image": np.full((2, 1, 8, 8), 200, np.uint8), "joints": np.ones((2, 4))}
    first = agent.predict(obs)
    assert policy.training and policy.actor.training and not policy.critic.training
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    np.testing.assert_array_equal(agent.predict(obs), first)
    with torch.no_grad():
        policy.head.mean_layer.linear.bias.add_(1.0)
    np.testing.assert_allclose(agent.predict(obs), first + 1.0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_is_handled():
    policy, obs = build(actor=(MEMORY,)), observe(3)
    wanted = [Agent(policy, seed=1).predict(obs), Agent(policy, seed=1).sample(obs)]
    agent = Agent(policy, device="cuda", seed=1)
    assert next(policy.parameters()).is_cuda
    np.testing.assert_allclose(agent.predict(obs), wanted[0], atol=1e-4)
    agent.reset(np.ones(3))
    np.testing.assert_allclose(agent.sample(obs), wanted[1], atol=1e-4)


# -- what may be played ------------------------------------------------------------------------------------------------


def test_a_stateful_model_is_played_as_its_pure_policy():
    model, obs = ActorCritic(5, None, 2, **SMALL), np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    agent = Agent(model)
    assert agent.policy is model.policy
    np.testing.assert_allclose(agent.predict(obs), model.act_inference(obs).detach().numpy(), atol=1e-6)


def test_a_mutex_is_played_with_its_memory_and_its_commands():
    spec = ObsSpec.from_segments({"proprioception": 4, "engaging_block": 3})
    memory = {"actor": (MEMORY,), "critic": (MEMORY,), **SMALL}
    subs = [Policy(spec, BOX, PolicyConfig(**memory)) for _ in range(2)]
    settings = {"obs_segments": {"proprioception": 4, "engaging_block": 3}, "sub_policies": subs, "cmd_entry": 0}
    model = ActorCriticFieldMutex(
        7,
        None,
        2,
        sub_action_scales=[0.5, 0.5],
        cmd_vel_mapping={1: (0.5, 1.5)},
        action_smoothing_buffer_len=2,
        **settings,
    )
    agent, wrapped = Agent(model), Agent(model.policy)
    memory_state, rng = model.policy.initial_state(3), np.random.default_rng(0)
    for _ in range(4):
        obs = rng.normal(size=(3, 7)).astype(np.float32)
        with torch.no_grad():
            distribution, memory_state, _ = model.policy.act(
                spec.split(torch.from_numpy(obs)), memory_state, model.policy.settled(torch.zeros(3))
            )
        np.testing.assert_allclose(agent.predict(obs), distribution.mode().numpy(), atol=1e-6)
        np.testing.assert_allclose(wrapped.predict(obs), distribution.mode().numpy(), atol=1e-6)
    first, again = Agent(model, seed=2), Agent(model, seed=2)
    np.testing.assert_array_equal(first.sample(obs), again.sample(obs))
    assert np.abs(first.sample(obs) - Agent(model, seed=3).sample(obs)).max() > 1e-3


def test_what_cannot_be_played_is_explained():
    with pytest.raises(TypeError, match=r"Agent wants a Policy, a MutexPolicy, .* found Linear"):
        Agent(torch.nn.Linear(2, 2))
    sub = Policy(ObsSpec.from_flat(4), BOX, PolicyConfig(**SMALL))
    told = ActorCriticMutex(4, None, 2, sub_policies=[sub], sub_action_scales=[0.5], last_action_component="")
    with pytest.raises(ValueError, match="told in every call which policy acts"):
        Agent(told)


def test_a_flat_array_of_the_wrong_size_is_told_the_actors_layout():
    with pytest.raises(ValueError, match=r"flat array \[7\] or \[N, 7\] with command=3, joints=4"):
        Agent(build()).predict(np.zeros((2, 6)))


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), ((-0.5, -float("inf")), (float("inf"), 0.25))])
def test_actions_for_an_env_are_within_their_bounds(bounds):
    # a Gaussian of std 3 leaves [-1, 1] in most samples; what the agent hands out may not
    box = BoxSpec(shape=(2,), low=bounds[0], high=bounds[1])
    policy = build(box, head_settings={"init_std": 3.0})
    with torch.no_grad():
        policy.head.mean_layer.linear.bias.copy_(torch.tensor([-4.0, 4.0]))
    agent, raw = Agent(policy), Agent(build(BOX, head_settings={"init_std": 3.0}))
    raw.policy.load_state_dict(policy.state_dict())
    low, high = box.bounds()
    obs = observe(64)
    for found, wanted in ((agent.predict(obs), raw.predict(obs)), (agent.sample(obs), raw.sample(obs))):
        assert (found >= low).all() and (found <= high).all() and (wanted != found).any()
        np.testing.assert_array_equal(found, np.clip(wanted, low, high))


def test_the_box_part_of_a_dict_action_is_clipped():
    spec = DictActionSpec({"move": BoxSpec(shape=(2,), low=-0.1, high=0.1), "jump": DiscreteSpec(n=3)})
    agent = Agent(build(spec))
    found = agent.sample(observe(16))
    assert np.abs(found["move"]).max() <= 0.1 and set(found["jump"].tolist()) <= {0, 1, 2}
