"""Steps that are recorded and played back give what steps taken one by one give.

There is no GPU here, so recordings are played by running their body again; a GPU test plays real ones.
"""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.base import ScriptedActor
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.graphed_rollout import GraphedRollout, apart_from
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.arena import Placement
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.vec_env import Step, VecEnv
from striderl.execution.modes import Eager, Graphed
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized, Uniform
from striderl.storage.rollout import RolloutStorage

ENVS, STEPS = 6, 9


class Again:
    """Stands in for a recording: copies the inputs in and runs the body."""

    def __init__(self, inputs, body):
        self.static, self.body = tree.map(torch.clone, inputs), body

    def play(self, values):
        for place, value in zip(tree.leaves(self.static), values, strict=True):
            place.copy_(value)
        self.body(self.static)


class AgainGraphs:
    """Stands in for the recordings of a mode."""

    def make(self, inputs, prepare, body):
        before = tree.map(torch.clone, inputs)
        prepare(inputs)
        assert all(torch.equal(one, other) for one, other in zip(tree.leaves(inputs), tree.leaves(before)))
        return Again(inputs, body)


def played_again(fused=False):
    mode = Graphed(strict=True, fused=fused)
    mode.graphs, mode.backend = AgainGraphs(), "aot_eager"
    return mode


class Bumpy(VecEnv):
    """Ends episodes here and there, and shows a number that is not one now and then."""

    episode_length_buf = torch.zeros(ENVS, dtype=torch.int64)

    def __init__(self, finals):
        self.num_envs, self.device = ENVS, torch.device("cpu")
        self.obs_spec = ObsSpec({"a": ComponentSpec(shape=(3,)), "b": ComponentSpec(shape=(2,), group="critic")})
        self.action_spec, self.info_spec = BoxSpec(shape=(2,)), {"speed": TensorSpec()}
        self.gives_final_obs, self.max_episode_length, self.step_dt = finals, 0, 0.02
        self.random, self.now = torch.Generator().manual_seed(3), 0

    def _shown(self):
        return {name: torch.randn(ENVS, *spec.shape, generator=self.random) for name, spec in self.obs_spec.items()}

    def reset(self, seed=None):
        return dict(reversed(self._shown().items()))

    def reset_envs(self, mask):
        return self._shown()

    def step(self, actions):
        self.now += 1
        ends = torch.rand(2, ENVS, generator=self.random)
        obs, final = self._shown(), self._shown()
        reward = actions.sum(-1) + torch.randn(ENVS, generator=self.random)
        if self.now == 4:
            obs["a"][1, 0] = torch.nan
        if self.now == 5:
            reward[2] = torch.inf
            final["b"][:, 0] = 1e20
        obs, final = dict(reversed(obs.items())), dict(reversed(final.items()))  # an order of its own
        info = {"log": {}, "speed": torch.randn(ENVS, generator=self.random)}
        return Step(obs, reward, ends[0] < 0.1, ends[1] < 0.15, final if self.gives_final_obs else None, info)


def parts(finals, kind, **settings):
    env = Bumpy(finals)
    torch.manual_seed(0)
    stages = (NormalizeObs(), Remember(type="gru", hidden_size=4)) if kind == "gru" else (NormalizeObs(),)
    policy = Policy(
        env.obs_spec,
        env.action_spec,
        PolicyConfig(actor=stages, critic=stages, actor_hidden_dims=(8,), critic_hidden_dims=(8,)),
    )
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=5, window=7, **settings))
    storage = RolloutStorage(
        collector.columns(),
        STEPS,
        ENVS,
        final_obs=collector.obs_spec if finals else None,
        final_state=policy.state_spec() if finals else None,
    )
    return collector, storage


def equal(one, other):
    pairs = zip(tree.leaves(one), tree.leaves(other), strict=True)
    return all(torch.equal(torch.as_tensor(a).nan_to_num(7.0), torch.as_tensor(b).nan_to_num(7.0)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finals", "kind", "fused", "settings"),
    [
        (False, "mlp", False, {}),
        (True, "gru", False, {}),
        (True, "mlp", True, {}),
        (True, "gru", False, {"wait_reset": True}),
        (True, "mlp", False, {"previous_step": True}),
        (False, "gru", True, {"wait_reset": True, "previous_step": True}),
        (True, "mlp", True, {"wait_reset": True, "previous_step": True}),
    ],
)
def test_played_steps_equal_steps_one_by_one(finals, kind, fused, settings):
    (plain, storage), (again, other) = parts(finals, kind, **settings), parts(finals, kind, **settings)
    again.reset()
    steps = GraphedRollout(again.groups[0], again.statistics, other, played_again(fused))
    for _ in range(3):
        storage.clear(), other.clear()
        faults = plain.collect(n_step=STEPS * ENVS, storage=storage).faults
        steps.run(STEPS)
        assert other.full and equal(storage.state_dict()["columns"], other.state_dict()["columns"])
        if finals:
            count = int(storage.finals.count)
            assert count == int(other.finals.count) > 0
            pools = (tree.index(pool.finals.arena.data, slice(0, count)) for pool in (storage, other))
            assert equal(*pools)
        assert [str(fault) for fault in again.heal()] == [str(fault) for fault in faults]
        assert plain.statistics.read() == pytest.approx(again.statistics.read(), nan_ok=True)
        assert equal(plain.current_obs, again.current_obs) and equal(plain.current_state, again.current_state)


class Unclear(Bumpy):
    """The same env, but no sample of the last row is valid, so no step takes the short way."""

    def step(self, actions):
        step = super().step(actions)
        valid = torch.ones(ENVS, dtype=torch.bool)
        valid[-1] = False
        return step._replace(info={**step.info, "valid": valid})


@pytest.mark.parametrize("finals", [False, True])
def test_the_short_way_of_a_step_without_an_event_returns_what_the_long_way_returns(finals):
    kept = []
    for kind in (Bumpy, Unclear):
        env = kind(finals)
        env.info_spec = {**env.info_spec, "valid": TensorSpec(dtype="bool")} if kind is Unclear else env.info_spec
        collector = Collector(env, ScriptedActor(lambda obs: obs["b"] / 2), CollectorConfig(seed=5))
        storage = RolloutStorage(collector.columns(), 40, ENVS, final_obs=env.obs_spec if finals else None)
        collector.collect(n_step=40 * ENVS, storage=storage)
        kept.append((tree.index(storage.state_dict()["columns"], (slice(None), slice(0, -1))), collector.current_obs))
    (short, obs), (long, other) = kept
    assert equal(short, long) and equal({k: v[:-1] for k, v in obs.items()}, {k: v[:-1] for k, v in other.items()})


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("finals", [False, True])
def test_played_steps_fill_a_replay_as_steps_one_by_one_do(finals, prioritized):
    sides = []
    for _ in range(2):
        collector, _ = parts(finals, "mlp")
        sampler = Prioritized(seed=1) if prioritized else Uniform(seed=1)
        sides.append((collector, Replay(collector.columns(), 11 * ENVS, ENVS, sampler=sampler)))
    (plain, replay), (again, other) = sides
    again.reset()
    steps = GraphedRollout(again.groups[0], again.statistics, other, played_again())
    for _ in range(3):  # the ring has eleven places: it goes round
        plain.collect(n_step=5 * ENVS, storage=replay)
        steps.run(5)
        again.heal()
        assert len(replay) == len(other)
        one, two = replay.sample(40), other.sample(40)
        assert torch.equal(one.index, two.index) and equal(one.data, two.data)
    assert other.room() == 11


def test_a_replay_that_keeps_more_than_steps_is_not_recorded():
    collector, _ = parts(True, "mlp")
    assert Replay(collector.columns(), 60, ENVS, episodes=True).room() == 0


def test_preparing_changes_nothing_and_steps_are_the_same_afterwards():
    (plain, storage), (again, other) = parts(True, "gru"), parts(True, "gru")
    again.reset()
    steps = GraphedRollout(again.groups[0], again.statistics, other, played_again())
    assert not steps.is_prepared
    steps.prepare()
    assert steps.is_prepared and again.env.now == 0 and other.first_place() == 0
    plain.collect(n_step=STEPS * ENVS, storage=storage)
    steps.run(STEPS)
    assert equal(storage.state_dict()["columns"], other.state_dict()["columns"])


def test_what_cannot_be_recorded_is_said_once_and_collected_all_the_same(caplog):
    collector, storage = parts(False, "mlp")
    collector.reset()
    collector.mode = played_again()
    collector.mode.strict = False
    collector.mode.graphs.make = lambda *_: (_ for _ in ()).throw(RuntimeError("no graphs here\nmore"))
    steps = GraphedRollout(collector.groups[0], collector.statistics, storage, collector.mode)
    assert not collector.graphed.prepared(steps, strict=False)
    assert "cannot be recorded, so they are taken one by one: no graphs here" in caplog.text
    assert not collector.graphed.play(collector.mode, collector.groups[0], collector.statistics, storage, STEPS)
    collector.collect(n_step=STEPS * ENVS, storage=storage)
    assert storage.full


def test_of_a_rollout_that_is_interrupted_the_steps_before_it_are_known():
    collector, storage = parts(True, "mlp")
    collector.reset()
    steps = GraphedRollout(collector.groups[0], collector.statistics, storage, played_again())
    whole = collector.env.step

    def interrupted(actions):
        if collector.env.now == 4:
            raise KeyboardInterrupt
        return whole(actions)

    collector.env.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        steps.run(STEPS)
    assert storage.first_place() == 4 and collector.groups[0].step == 4
    assert storage.data["obs"]["a"][3].any() and not storage.data["obs"]["a"][4:].any()


def test_after_an_interrupted_rollout_the_next_call_starts_fresh(monkeypatch):
    class Interrupted:
        is_prepared = True

        def __init__(self, group, statistics, storage, mode):
            self.group, self.storage = group, storage

        def run(self, num_steps):
            raise KeyboardInterrupt

    collector, storage = parts(False, "mlp")
    collector.reset()
    monkeypatch.setattr("striderl.collect.graphed_rollout.GraphedRollout", Interrupted)
    collector.mode, collector.env.device = played_again(), torch.device("cuda")
    with pytest.raises(KeyboardInterrupt):
        collector.collect(n_step=STEPS * ENVS, storage=storage)
    resets, begin = [], collector.env.reset
    monkeypatch.setattr(collector.env, "reset", lambda seed=None: resets.append(seed) or begin(seed))
    collector.ready()
    assert len(resets) == 1


def test_what_others_keep_of_a_step_does_not_change_with_the_next_rollout():
    collector, storage = parts(True, "gru")
    collector.reset()
    group = collector.groups[0]
    steps = collector.graphed.rollout = GraphedRollout(group, collector.statistics, storage, played_again())
    steps.run(2)
    kept = []

    class Keeper:
        balanced = False

        def add(self, transition, envs=None):
            kept.append(transition)

    collector.collect(n_step=ENVS, storage=Keeper())
    before = tree.copy(kept[0].obs)
    steps.run(2)
    assert equal(kept[0].obs, before)


def test_a_full_storage_is_not_written_to():
    _, storage = parts(False, "mlp")
    assert storage.room() == STEPS
    storage.count_steps(STEPS)
    assert storage.room() == 0 and storage.full


class BumpyOnGpu(Bumpy):
    """The same on a GPU, from ready tensors, so that nothing in it waits for the host."""

    def __init__(self, finals):
        super().__init__(finals)
        self.device, self.rows = torch.device("cuda"), []
        for _ in range(4 * STEPS):
            step = super().step(torch.zeros(ENVS, 2))
            self.rows.append(tree.map(lambda leaf: leaf.cuda(), step._replace(info={"speed": step.info["speed"]})))
        self.at = 0

    def _shown(self):
        return {name: value.to(self.device) for name, value in super()._shown().items()}

    def step(self, actions):
        self.at += 1
        step = self.rows[self.at % len(self.rows)]
        return step._replace(reward=step.reward + actions.sum(-1), info={**step.info, "log": {}})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("fused", "settings"), [(False, {}), (True, {}), (False, {"wait_reset": True, "previous_step": True})]
)
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_a_recorded_rollout_on_a_gpu_equals_an_eager_one_and_never_waits(kind, settings, fused, monkeypatch):
    monkeypatch.setitem(globals(), "Bumpy", BumpyOnGpu)
    sides = []
    for mode in (Eager(), Graphed(strict=True, fused=fused)):
        collector, _ = parts(True, kind, **settings)
        collector.actor.policy.to("cuda")
        collector.mode = mode
        storage = RolloutStorage(
            collector.columns(),
            STEPS,
            ENVS,
            placement=Placement(device="cuda"),
            final_obs=collector.obs_spec,
            final_state=collector.actor.policy.state_spec(),
        )
        sides.append((collector, storage))
    for number in range(4):
        found = []
        for collector, storage in sides:
            storage.clear()
            if number == 3 and collector.mode.records:
                collector.ready()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    collector.collect_graphed(STEPS * ENVS, storage)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                collector.heal()
            else:
                collector.collect(n_step=STEPS * ENVS, storage=storage)
            found.append(tree.copy(storage.state_dict()["columns"]))
        for name, value in found[0].items():
            torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert sides[0][0].statistics.read() == pytest.approx(sides[1][0].statistics.read(), rel=1e-4, nan_ok=True)


def test_what_acting_overwrites_is_copied_before_it_is_stored_beside():
    actions, column = torch.zeros(4, 2), torch.zeros(4, 3)
    acted = {"actions": actions, "state": {"h": column}}
    packed = {"rows": actions.view(-1), "first": column[:, :1], "own": torch.ones(3)}
    found = apart_from(packed, acted)
    assert found["own"] is packed["own"]
    actions.fill_(5.0), column.fill_(5.0)
    assert not found["rows"].any() and not found["first"].any()
