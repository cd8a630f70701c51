"""One good env and many that break the contract, each in one way, with what the checker must say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.toy.bandits import unit_interval
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome
from striderl.envs.vec_env import Actions, Obs, Step

NUM_ENVS = 4


class Wanderer(ToyEnv):
    """A good env: a point starts anywhere, is pushed about, and ends outside a circle or after eight steps."""

    def __init__(self, num_envs: int = NUM_ENVS) -> None:
        super().__init__(
            num_envs,
            "cpu",
            obs_spec=ObsSpec({"place": ComponentSpec(shape=(2,)), "age": ComponentSpec(shape=(1,), dtype="int64")}),
            action_spec=BoxSpec(shape=(2,), low=-1.0, high=1.0),
            max_episode_length=8,
            first_env_index=0,
            num_words=2,
            info_spec={"energy": TensorSpec()},
        )
        self.calls = 0

    def step(self, actions: Actions) -> Step:
        self.calls += 1
        return self.spoil(super().step(actions))

    def reset(self, seed: int | None = None) -> Obs:
        self.calls = 0
        return super().reset(seed)

    def spoil(self, step: Step) -> Step:
        """Let a bad env change what a good one would return."""
        return step

    def _start(self, words: Tensor) -> State:
        return {"place": unit_interval(words)}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        place = state["place"] + 0.3 * actions
        outside = place.square().sum(1) > 4.0
        return ToyOutcome(
            {"place": place}, -place.abs().sum(1), outside, self._never(), {"energy": actions.abs().sum(1)}
        )

    def _observe(self, state: State) -> Obs:
        return {"place": state["place"].clone(), "age": state["length"][:, None].clone()}


@dataclass(frozen=True)
class Fault:
    """What the checker must find in a bad env."""

    field: str
    words: str
    env: int = -1
    step: int = -1


class WrongShape(Wanderer):
    fault = Fault("obs['place']", "wanted shape [4, 2], found [4, 3]", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(obs={**step.obs, "place": torch.zeros(4, 3)})


class ShapeChangesLater(Wanderer):
    fault = Fault("obs['place']", "wanted shape [4, 2], found [4, 1, 2]", step=50)

    def spoil(self, step: Step) -> Step:
        place = step.obs["place"]
        return step._replace(obs={**step.obs, "place": place[:, None] if self.calls == 50 else place})


class DtypeChangesLater(Wanderer):
    fault = Fault("obs['place']", "wanted dtype float32, found float64", step=37)

    def spoil(self, step: Step) -> Step:
        place = step.obs["place"]
        return step._replace(obs={**step.obs, "place": place.double() if self.calls >= 37 else place})


class NanObs(Wanderer):
    fault = Fault("obs['place']", "wanted finite numbers, found nan at entry 1", env=2, step=9)

    def spoil(self, step: Step) -> Step:
        if self.calls == 9:
            step.obs["place"][2, 1] = float("nan")
        return step


class InfiniteFinalObs(Wanderer):
    fault = Fault("final_obs['place']", "wanted finite numbers, found inf at entry 0", step=8)

    def spoil(self, step: Step) -> Step:
        if self.calls == 8:
            step.final_obs["place"][:, 0] = float("inf")
        return step


class NanReward(Wanderer):
    fault = Fault("reward", "wanted finite numbers, found nan", env=3, step=2)

    def spoil(self, step: Step) -> Step:
        if self.calls == 2:
            step.reward[3] = float("nan")
        return step


class IntegerDones(Wanderer):
    fault = Fault("terminated", "wanted dtype bool, found int64", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(terminated=step.terminated.long())


class FloatTimeouts(Wanderer):
    fault = Fault("truncated", "wanted dtype bool, found float32", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(truncated=step.truncated.float())


class PythonDones(Wanderer):
    fault = Fault("terminated", "wanted a torch tensor, found list", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(terminated=step.terminated.tolist())


class ColumnReward(Wanderer):
    fault = Fault("reward", "wanted shape [4], found [4, 1]", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(reward=step.reward[:, None])


class DoubleReward(Wanderer):
    fault = Fault("reward", "wanted dtype float32, found float64", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(reward=step.reward.double())


class RewardWithGradient(Wanderer):
    fault = Fault("reward", "wanted no gradient", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(reward=step.reward.requires_grad_())


class WrongDeviceTag(Wanderer):
    fault = Fault("obs['place']", "wanted device cuda:0, found cpu", step=0)

    def reset(self, seed: int | None = None) -> Obs:
        self.device = torch.device("cpu")
        obs = super().reset(seed)
        self.device = torch.device("cuda:0")
        return obs


class MissingComponent(Wanderer):
    fault = Fault("obs", "found no 'age'", step=3)

    def spoil(self, step: Step) -> Step:
        return step._replace(obs={"place": step.obs["place"]}) if self.calls == 3 else step


class ExtraComponent(Wanderer):
    fault = Fault("obs", "found also 'secret'", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(obs={**step.obs, "secret": torch.zeros(4)})


class BareTensorObs(Wanderer):
    fault = Fault("obs", "wanted a dict of named tensors, found Tensor", step=0)

    def reset(self, seed: int | None = None) -> Any:
        return super().reset(seed)["place"]


class NumpyObs(Wanderer):
    fault = Fault("obs['place']", "wanted a torch tensor, found ndarray", step=0)

    def reset(self, seed: int | None = None) -> Any:
        obs = super().reset(seed)
        return {**obs, "place": obs["place"].numpy()}


class GymnasiumTuple(Wanderer):
    fault = Fault("step", "wanted a Step", step=1)

    def spoil(self, step: Step) -> Any:
        return (step.obs, step.reward, step.terminated, step.truncated, step.info)


class MissingInfoKey(Wanderer):
    fault = Fault("info['energy']", "because info_spec declares it", step=5)

    def spoil(self, step: Step) -> Step:
        return step._replace(info={"log": {}}) if self.calls == 5 else step


class NoLog(Wanderer):
    fault = Fault("info", "found no 'log'", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(info={"energy": step.info["energy"]})


class NoneInfo(Wanderer):
    fault = Fault("info", "wanted a dict, found NoneType", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(info=None)


class TensorsInTheLog(Wanderer):
    fault = Fault("info['log']['speed']", "wanted a number or a 0-d tensor, found Tensor [4]", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(info={**step.info, "log": {"speed": torch.zeros(4)}})


class SharedInfo(Wanderer):
    fault = Fault("info", "the same object as in the step before", step=2)

    def spoil(self, step: Step) -> Step:
        self.__dict__.setdefault("extras", {}).update(step.info)
        return step._replace(info=self.__dict__["extras"])


class AliasedObs(Wanderer):
    fault = Fault("obs['place']", "it was changed by step 2", env=0, step=1)

    def spoil(self, step: Step) -> Step:
        buffer = self.__dict__.setdefault("buffer", torch.zeros(4, 2))
        buffer.copy_(step.obs["place"])
        return step._replace(obs={**step.obs, "place": buffer})


class AliasedRewardOfOneEnv(Wanderer):
    fault = Fault("reward", "wanted a tensor that stays as it was handed out", env=1, step=3)

    def spoil(self, step: Step) -> Step:
        if self.calls == 3:
            self.__dict__["old"] = step.reward
        if self.calls == 4:
            self.__dict__["old"][1] += 1.0
        return step


class ChangesActions(Wanderer):
    fault = Fault("step", "they were changed in place", step=1)

    def step(self, actions: Actions) -> Step:
        step = super().step(actions)
        actions.mul_(0.5)
        return step


class IgnoresItsSeed(Wanderer):
    fault = Fault("reset(seed=0)", "These envs ignore their seed", env=0, step=0)

    def reset(self, seed: int | None = None) -> Obs:
        self.__dict__["count"] = self.__dict__.get("count", 0) + 1
        return super().reset(None if seed is None else 1000 + self.__dict__["count"])


class OneEnvIgnoresItsSeed(Wanderer):
    fault = Fault("reset(seed=0)", "another obs['place'] in envs [2]", env=2, step=0)

    def reset(self, seed: int | None = None) -> Obs:
        super().reset(seed)
        self._state["place"][2] = torch.rand(2)
        return self._observe(self._state)


class UnseededSteps(Wanderer):
    fault = Fault("reset(seed=0)", "Some randomness does not follow the seed", env=1, step=4)

    def spoil(self, step: Step) -> Step:
        if self.calls == 4:
            step.reward[1] += torch.rand(())
        return step


class NoFinalObs(Wanderer):
    fault = Fault("final_obs", "because gives_final_obs is True, found None", step=1)

    def spoil(self, step: Step) -> Step:
        return step._replace(final_obs=None)


class UndeclaredFinalObs(Wanderer):
    fault = Fault("final_obs", "because gives_final_obs is False, found dict", step=1)

    def __init__(self) -> None:
        super().__init__()
        self.gives_final_obs = False


class FinalObsAfterTheReset(Wanderer):
    fault = Fault("final_obs", "Either final_obs was taken after the reset", step=8)

    def spoil(self, step: Step) -> Step:
        return step._replace(final_obs={name: value.clone() for name, value in step.obs.items()})


class ResetsEverybody(Wanderer):
    fault = Fault(
        "reset_envs", "of envs outside the mask as it was, found another one in envs [0, 1, 2, 3]", env=0, step=3
    )

    def reset_envs(self, mask: Tensor) -> Obs:
        return super().reset_envs(torch.ones_like(mask))


class ResetsTheNeighbour(Wanderer):
    fault = Fault("reset_envs", "found another one in envs [3]", env=3, step=3)

    def reset_envs(self, mask: Tensor) -> Obs:
        wider = mask.clone()
        wider[3] |= mask[2]
        return super().reset_envs(wider)


class ResetsNobody(Wanderer):
    fault = Fault("reset_envs", "episode_length_buf 0 in the mask", env=0, step=3)

    def reset_envs(self, mask: Tensor) -> Obs:
        return super().reset_envs(torch.zeros_like(mask))


class PhantomStep(Wanderer):
    """Reset in the step after the end, as one of Gymnasium's modes does: that step ignores its action."""

    fault = Fault("episode_length_buf", "wanted 0 after the episode ended", step=8)

    def step(self, actions: Actions) -> Step:
        self.calls += 1
        waiting = self.__dict__.get("waiting", self._never())
        outcome = self._advance(self._state, actions)
        state = {**self._state, **outcome.changes, "length": self._state["length"] + 1}
        state = self._renewed(state, waiting)
        truncated = (state["length"] >= self.max_episode_length) & ~waiting
        terminated = outcome.terminated & ~waiting
        self.__dict__["waiting"] = terminated | truncated
        self._state = state
        obs, info = self._observe(state), {**outcome.info, "log": {}}
        return Step(obs, outcome.reward, terminated, truncated, self._observe(state), info)

    def reset(self, seed: int | None = None) -> Obs:
        self.__dict__.pop("waiting", None)
        return super().reset(seed)


class LengthsStandStill(Wanderer):
    fault = Fault("episode_length_buf", "wanted one more than before the step, found 2 after 2", env=1, step=3)

    def spoil(self, step: Step) -> Step:
        if self.calls == 3:
            self._state["length"][1] -= 1
        return step


class TimeLimitIgnoredByOneEnv(Wanderer):
    fault = Fault("truncated", "true for an episode of max_episode_length=8 steps, found false", env=2)

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        self.max_episode_length = 0
        outcome = super()._advance(state, actions)
        late = (state["length"] + 1 >= 8) & (torch.arange(self.num_envs) != 2)
        return outcome._replace(truncated=late)

    def spoil(self, step: Step) -> Step:
        self.max_episode_length = 8
        return step


class LengthsCannotBeSet(Wanderer):
    fault = Fault("episode_length_buf", "wanted what was set, found 0 instead of 1", env=1)

    @property
    def episode_length_buf(self) -> Tensor:
        return self._state["length"].clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        pass


class LengthsAreAliased(Wanderer):
    fault = Fault("episode_length_buf", "wanted a copy of what was set", env=0)

    @property
    def episode_length_buf(self) -> Tensor:
        return self._state["length"].clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._state = {**self._state, "length": value}


class FloatLengths(Wanderer):
    fault = Fault("episode_length_buf", "wanted int64 [4], found float32 [4]")

    @property
    def episode_length_buf(self) -> Tensor:
        return self._state["length"].float()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._state = {**self._state, "length": value.long()}


class ZeroSizeObs(Wanderer):
    fault = Fault("obs_spec['nothing']", "wanted at least one number, found shape [0]")

    def __init__(self) -> None:
        super().__init__()
        self.obs_spec = self.obs_spec.merged(ObsSpec({"nothing": ComponentSpec(shape=(0,))}))

    def _observe(self, state: State) -> Obs:
        return {**super()._observe(state), "nothing": torch.zeros(self.num_envs, 0)}


class MaskThatIsNotThere(Wanderer):
    fault = Fault("action_spec.mask", "found 'allowed'")

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = DiscreteSpec(n=3, mask="allowed")


class MaskAllowsNothing(Wanderer):
    fault = Fault("action mask", "allows no choice for action entry 0 in env 1", step=0)

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = DiscreteSpec(n=3, mask="allowed")
        self.obs_spec = self.obs_spec.merged(ObsSpec({"allowed": ComponentSpec(shape=(3,), dtype="bool")}))

    def _observe(self, state: State) -> Obs:
        allowed = torch.ones(4, 3, dtype=torch.bool)
        allowed[1] = False
        return {**super()._observe(state), "allowed": allowed}


class NoDeclaredDevice(Wanderer):
    fault = Fault("device", "wanted device, found str 'cpu'")

    def __init__(self) -> None:
        super().__init__()
        self.device = "cpu"


class RaisesLater(Wanderer):
    fault = Fault("step", "wanted no error, found ZeroDivisionError", step=13)

    def spoil(self, step: Step) -> Step:
        return step._replace(reward=step.reward / (1 // (13 - self.calls) if self.calls == 13 else 1))


class ForgetsPartOfItsState(Wanderer):
    fault = Fault("load_state_dict", "wanted the same data after loading a state", env=0, step=3)

    def load_state_dict(self, state: Any) -> Obs:
        variables = {**state["state"], "place": torch.zeros(4, 2)}
        return super().load_state_dict({**state, "state": variables})


class SavesItsOwnBuffers(Wanderer):
    fault = Fault("state_dict()['place']", "a copy that stays as it was saved")

    def state_dict(self) -> dict[str, Any]:
        self.__dict__["place"] = self._state["place"].clone()
        return {**super().state_dict(), "place": self.__dict__["place"]}

    def spoil(self, step: Step) -> Step:
        if "place" in self.__dict__:
            self.__dict__["place"].copy_(step.obs["place"])
        return step


class SavesObjects(Wanderer):
    fault = Fault(
        "state_dict()['generator']", "wanted tensors, numbers and strings, in dicts or lists, found Generator"
    )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": torch.Generator()}


class ClosesOnlyOnce(Wanderer):
    fault = Fault("close() for the second time", "RuntimeError: already closed")

    def close(self) -> None:
        if self.__dict__.get("closed"):
            raise RuntimeError("already closed")
        self.__dict__["closed"] = True


class BadMetrics(Wanderer):
    fault = Fault("metrics()['error']", "wanted float [4]")

    def metrics(self) -> dict[str, Tensor]:
        return {"error": torch.zeros(())}


BREAKERS = [kind for kind in Wanderer.__subclasses__() if hasattr(kind, "fault")]
"""Every env above that breaks the contract; each has its `fault`."""


class OneStreamForAll(Wanderer):
    """Allowed, but rarely meant: every env starts at the same random place."""

    def _start(self, words: Tensor) -> State:
        return {"place": unit_interval(words[:1]).expand(self.num_envs, 2).clone()}


class TwoEnvsShareAStream(Wanderer):
    """Allowed, but rarely meant: env 3 copies env 1."""

    def _start(self, words: Tensor) -> State:
        return {"place": unit_interval(words[[0, 1, 2, 1]])}


class OneEnvHasOneSeed(Wanderer):
    """Allowed, but rarely meant: env 2 starts at the same place whatever the seed."""

    def _start(self, words: Tensor) -> State:
        place = unit_interval(words)
        place[2] = 0.5
        return {"place": place}


class TakesTooFewActions(Wanderer):
    """Allowed, but rarely meant: an env without an action stands still."""

    def step(self, actions: Actions) -> Step:
        padded = torch.zeros(4, 2)
        padded[: len(actions)] = actions
        return super().step(padded)


class FixedStartAsFinalObs(Wanderer):
    """A fixed start may be where an episode ends, so this cannot be called wrong for certain."""

    def _start(self, words: Tensor) -> State:
        return {"place": torch.zeros(4, 2)}

    def spoil(self, step: Step) -> Step:
        return step._replace(final_obs={name: value.clone() for name, value in step.obs.items()})
