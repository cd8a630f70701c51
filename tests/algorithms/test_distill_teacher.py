"""Teachers: what they see, their own normalisers and memories, several of them, latents, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from teacher_cases import LENGTH, SMALL, HiddenGoal, Loop, goal_teacher, loop, student
from torch import Tensor

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.terms.distill import Distill, DistillConfig
from striderl.collect.teacher import Sight, Teacher, TeacherRouter
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy import MemoryCue
from striderl.envs.vec_env import VecEnv
from striderl.policies.encode import Encode
from striderl.policies.mutex.policy import MutexPolicy
from striderl.policies.mutex.settings import FieldSelection, MutexConfig
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.presets.base import ActorCritic
from striderl.policies.stages import NormalizeObs, Remember

BOX = BoxSpec(shape=(2,))
CPU = torch.device("cpu")


def random_teacher(env: VecEnv, seed: int = 5, **config: Any) -> Teacher:
    torch.manual_seed(seed)
    settings = {"actor_obs": ("goal",), "critic_obs": ("goal",), "actor_hidden_dims": (6,), "critic_hidden_dims": (6,)}
    return Teacher(Policy(env.obs_spec, env.action_spec, PolicyConfig(**{**settings, **config})))


def collected(teacher: Any, num_envs: int = 4, num_steps: int = 12, **settings: Any) -> tuple[Loop, dict[str, Any]]:
    env = HiddenGoal(num_envs)
    policy = student(env, "", actor=(NormalizeObs(),))
    parts = loop(PPO(policy, SMALL, [Distill(teacher, DistillConfig(**settings))]), env, num_steps)
    return parts, parts.collect().columns


# -- what it sees ------------------------------------------------------------------------------------------------------


def test_defect_26_the_teacher_sees_raw_observations_through_its_own_normaliser():
    env = HiddenGoal(4)
    teacher = random_teacher(env, actor=(NormalizeObs(),))
    seen = {name: 5.0 + 3.0 * torch.randn(100, *spec.shape) for name, spec in env.obs_spec.items()}
    teacher.policy.train().absorb(seen)  # it was trained where goals are about 5
    teacher.policy.eval()
    parts, columns = collected(teacher)
    parts.algorithm.absorb(columns)  # the student's normaliser learns something else
    columns = parts.collect().columns
    rows = {name: value.flatten(0, 1) for name, value in columns["obs"].items()}
    wanted, _, _ = teacher.policy.act(rows, {}, {})
    torch.testing.assert_close(columns["policy"]["distill"]["label"].flatten(0, 1), wanted.mode())
    plain = random_teacher(env)
    plain.policy.load_state_dict(teacher.policy.state_dict(), strict=False)
    other, _, _ = plain.policy.act(rows, {}, {})
    assert float((other.mode() - wanted.mode()).abs().max()) > 0.01  # the normaliser does make a difference


def test_a_teacher_with_a_memory_remembers_within_episodes_only():
    env = HiddenGoal(3)
    teacher = random_teacher(env, actor=(Remember(type="lstm", hidden_size=5),))
    parts, columns = collected(teacher, 3, 2 * LENGTH + 3)
    done = columns["terminated"] | columns["truncated"]
    resets = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
    assert bool(resets.any())
    state = teacher.policy.initial_state(3)
    memo = teacher.policy.settled(torch.zeros(done.shape))
    wanted, _, _ = teacher.policy.act(columns["obs"], state, memo, resets)
    torch.testing.assert_close(columns["policy"]["distill"]["label"], wanted.mode())
    assert any(name.startswith("distill/teacher/") for name in parts.collector.current_state)


def test_a_component_may_have_another_name():
    _, columns = collected(goal_teacher(name="aim", components={"aim": "goal"}))
    torch.testing.assert_close(columns["policy"]["distill"]["label"], columns["obs"]["goal"])


def test_the_critics_copy_of_a_component_is_preferred_when_labels_are_privileged():
    spec = ObsSpec({"scan": ComponentSpec(shape=(2,)), "critic/scan": ComponentSpec(shape=(2,), group="critic")})
    teacher = goal_teacher(name="scan")
    obs = {"scan": torch.zeros(1, 2), "critic/scan": torch.ones(1, 2)}
    for privileged, wanted in ((True, 1.0), (False, 0.0)):
        bound = teacher.bound(Sight(spec, ("scan",), privileged), BOX, CPU)
        assert bound.label(obs, {}, {}, sample=False).actions.tolist() == [[wanted, wanted]]


def test_defect_31_a_stateful_model_can_teach():
    env = HiddenGoal(4)
    model = ActorCritic(env.obs_spec.select(["goal"]), env.obs_spec.select(["goal"]), BOX, actor_hidden_dims=[8])
    _, columns = collected(Teacher(model))
    wanted = model.act_inference({"goal": columns["obs"]["goal"].flatten(0, 1)})
    torch.testing.assert_close(columns["policy"]["distill"]["label"].flatten(0, 1), wanted.detach())


# -- several teachers --------------------------------------------------------------------------------------------------


def routed(component: Tensor, spec: ComponentSpec) -> Tensor:
    env_spec = ObsSpec({"goal": ComponentSpec(shape=(2,)), "skill": spec})
    minus = goal_teacher()
    with torch.no_grad():
        minus.policy.head.mean_layer.linear.weight.neg_()
    router = TeacherRouter([goal_teacher(), minus], "skill")
    bound = router.bound(Sight(env_spec, ("goal",), True), BOX, CPU)
    obs = {"goal": torch.ones(len(component), 2), "skill": component}
    return bound.label(obs, bound.initial_state(len(component), CPU), {}, sample=False).actions[:, 0]


def test_a_one_hot_component_says_whose_turn_it_is():
    turn = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])  # none: the first
    assert routed(turn, ComponentSpec(shape=(2,))).tolist() == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_whole_number_says_whose_turn_it_is(shape):
    turn = torch.tensor([0, 1, 7]).view(3, *shape)  # there is no teacher 7: the last
    assert routed(turn, ComponentSpec(shape=shape, dtype="int64")).tolist() == [1.0, -1.0, -1.0]


def test_routed_teachers_keep_their_memories_apart():
    env = HiddenGoal(4)
    router = TeacherRouter(
        [random_teacher(env, at, actor=(Remember(type="gru", hidden_size=4),)) for at in (1, 2)], "first"
    )
    parts, columns = collected(router)
    for at, teacher in enumerate(router.teachers):
        mine = columns["obs"]["first"][..., 0].long() == at
        done = columns["terminated"]
        resets = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
        said, _, _ = teacher.policy.act(columns["obs"], teacher.policy.initial_state(4), {}, resets)
        torch.testing.assert_close(columns["policy"]["distill"]["label"][mine], said.mode()[mine])
    assert set(parts.algorithm.state_dict()["terms"]["distill"]["teachers"]) == {"0", "1"}


def test_routing_by_something_that_cannot_say_whose_turn_it_is():
    spec = ObsSpec({"goal": ComponentSpec(shape=(2,)), "skill": ComponentSpec(shape=(3,))})
    with pytest.raises(ValueError, match="chooses among 2 teachers"):
        TeacherRouter([goal_teacher(), goal_teacher()], "skill").bound(Sight(spec, (), True), BOX, CPU)
    with pytest.raises(KeyError, match="Did you mean 'skill'"):
        TeacherRouter([goal_teacher(), goal_teacher()], "skil").bound(Sight(spec, (), True), BOX, CPU)
    with pytest.raises(ValueError, match="at least two"):
        TeacherRouter([goal_teacher()], "skill")


def test_a_mutex_can_teach():
    env = HiddenGoal(4)
    skills = [goal_teacher().policy, goal_teacher().policy]
    with torch.no_grad():
        skills[1].head.mean_layer.linear.weight.neg_()
    spec = env.obs_spec

    class Chooses(FieldSelection):
        """Policy 1 in the first step, policy 0 later."""

        def check(self, spec: ObsSpec, num_policies: int) -> None:
            """Fit everything."""

        def choose(self, obs: Any, num_policies: int) -> Tensor:
            first = obs["first"]
            return torch.cat([1.0 - first, first], dim=1)

    mutex = MutexPolicy(spec, skills, [0.5, 0.5], MutexConfig(selection=Chooses(), env_action_scale=0.5))
    for sample in (False, True):
        _, columns = collected(Teacher(mutex), action_labels_from_sample=sample)
        sign = 1.0 - 2.0 * columns["obs"]["first"]
        error = columns["policy"]["distill"]["label"] - sign * columns["obs"]["goal"]
        assert float(error.abs().max()) < (1.0 if sample else 1e-6)
        assert (float(error.abs().max()) > 0.01) is sample


# -- latents -----------------------------------------------------------------------------------------------------------


def encoding(component: str, size: int = 3) -> Encode:
    return Encode(components=(component,), settings={"hidden_sizes": (4,)}, output_size=size)


def latent_loop(memory: str = "") -> tuple[Loop, Teacher]:
    env = HiddenGoal(4)
    teacher = random_teacher(env, actor=(encoding("goal"),))
    stages = (encoding("cue"), *((Remember(type="gru", hidden_size=4),) if memory else ()))
    settings = DistillConfig(latents={"cue": "goal"}, latent_target="mse_sum", latent_weight=0.5)
    policy = student(env, "", actor=stages)
    return loop(PPO(policy, SMALL, [Distill(teacher, settings)]), env), teacher


@pytest.mark.parametrize("memory", ["", "gru"])
def test_latents_are_compared_and_train_the_encoder_alone(memory):
    parts, teacher = latent_loop(memory)
    minibatch = next(iter(parts.algorithm.minibatches(parts.collect(), torch.Generator().manual_seed(0))))
    losses, _, _ = parts.algorithm.compute_losses(minibatch)
    weight, loss = losses["distill_latent_cue"]
    policy = parts.algorithm.policy
    rows = minibatch["obs"]
    mine = next(stage for name, stage in policy.actor.named_stages() if "Encode" in name).latent("cue", rows)
    theirs = next(stage for name, stage in teacher.policy.actor.named_stages()).latent("goal", rows)
    torch.testing.assert_close(loss, (mine - theirs).square().sum(-1).mean())
    assert float(weight) == 0.5
    named = dict(policy.named_parameters())
    grads = dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True)))
    assert {name.split(".")[2] for name, grad in grads.items() if grad is not None} == {"0_Encode"}


def test_defect_29_no_gradient_reaches_the_teachers_latent():
    parts, teacher = latent_loop()
    teacher.policy.requires_grad_(True)  # even if somebody thaws it
    prepared = parts.collect()
    latent = prepared.columns["policy"]["distill"]["latent"]["goal"]
    assert not latent.requires_grad
    parts.algorithm.update(prepared, torch.Generator().manual_seed(0))
    assert all(parameter.grad is None for parameter in teacher.policy.parameters())


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(teacher: Any, env: VecEnv | None = None, policy: Policy | None = None, **settings: Any) -> str:
    env = env or HiddenGoal(2)
    with pytest.raises((KeyError, ValueError, TypeError)) as caught:
        DAgger(policy or student(env, ""), terms=[Distill(teacher, DistillConfig(**settings))])
    return str(caught.value)


def test_a_component_that_the_env_does_not_give():
    assert "Did you mean 'goal'" in refused(goal_teacher(name="goals"))


def test_a_component_that_only_the_critic_sees():
    words = refused(goal_teacher(), label_action_with_critic_obs=False)
    assert "only the student's critic sees" in words and "label_action_with_critic_obs=True" in words


def test_a_component_of_another_shape():
    assert "shape (2,)" in refused(goal_teacher(name="first", components=None))


def test_other_actions():
    spec = ObsSpec({"goal": ComponentSpec(shape=(2,))})
    teacher = Teacher(Policy(spec, BoxSpec(shape=(3,)), PolicyConfig(actor_hidden_dims=(), critic_hidden_dims=())))
    assert "the teacher's actions are" in refused(teacher)


def test_something_that_is_no_teacher():
    with pytest.raises(TypeError, match="wrap a policy"):
        Distill(student(HiddenGoal(2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="load_teacher"):
        Teacher("runs/walk")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="Did you mean 'goal'"):
        goal_teacher(components={"goals": "goal"})


def test_comparisons_that_do_not_fit():
    assert "mu_activation='tanh'" in refused(goal_teacher(), target="tanh")
    env = HiddenGoal(2)
    beta = student(env, "", head="beta", head_settings={"low": -1.0, "high": 1.0})
    assert "distributions of one kind" in refused(goal_teacher(), env, beta, target="kl")
    bare = student(env, "", head="deterministic", head_settings={})
    assert "no log-probabilities" in refused(goal_teacher(), env, bare, target="max_log_prob")
    assert "a deterministic one has none" in refused(goal_teacher(), env, bare, target="kl")


def test_choices_are_compared_by_probabilities():
    env = MemoryCue(4)
    small = PolicyConfig(actor_hidden_dims=(6,), critic_hidden_dims=(6,))
    policy, teacher = (Policy(env.obs_spec, DiscreteSpec(n=3), small) for _ in range(2))
    assert "for choices use" in refused(Teacher(teacher), env, policy)
    for target in ("max_log_prob", "kl"):
        term = Distill(Teacher(teacher), DistillConfig(target=target, teacher_act_prob=0.5))
        numbers = loop(PPO(policy, SMALL, [term]), MemoryCue(4)).learn()
        assert float(numbers["distillation_loss"]) > 0 and float(numbers["first_ratio_error"]) < 1e-5


def test_latents_that_are_not_there():
    env = HiddenGoal(2)
    encoded = student(env, "", actor=(encoding("cue"),))
    assert "no encoded component 'cue'" in refused(goal_teacher(), latents={"cue": "goal"})
    assert "no encoded component 'goal'" in refused(goal_teacher(), env, encoded, latents={"cue": "goal"})
    large = random_teacher(env, actor=(encoding("goal", 5),))
    assert "encode both to one size" in refused(large, env, encoded, latents={"cue": "goal"})
