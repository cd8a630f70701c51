"""rlpyt's agents for SAC, DDPG and TD3: an actor, critics of actions, and their targets.

    SacAgent     model ─▶ mu, log_std [..., n]     q1, q2 models (…, action) ─▶ q [...]     squashed to ±action_squash
    SacVAgent    the same                          and a model of V ─▶ v [...]
    DdpgAgent    model ─▶ mu [..., n]              q model                                  noise of std action_std
    Td3Agent     the same                          two q models                             and noise on target actions

The action spaces of these agents have one dimension and bounds -high to high.
"""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.samplers.agents import AgentStep
from striderl.compat.rlpyt import logger
from striderl.compat.rlpyt.agents import BaseAgent, ModelClass, copied
from striderl.compat.rlpyt.distributions import DistInfoStd, Gaussian, GaussianDistInfo
from striderl.compat.rlpyt.synchronize import average_gradients
from striderl.compat.rlpyt.tensors import update_state_dict
from striderl.compat.rlpyt.vector_models import MuMlpModel, PiMlpModel, QofMuMlpModel, VMlpModel
from striderl.compat.user_models import one_per_row
from striderl.data.named_tuples import ArrayTuple, namedarraytuple

SacAgentInfo = namedarraytuple("SacAgentInfo", ["dist_info"])
DdpgAgentInfo = namedarraytuple("DdpgAgentInfo", ["mu"])
Models = namedtuple("Models", ["pi", "q1", "q2"])
SacVModels = namedtuple("SacVModels", ["pi", "q1", "q2", "v"])

MIN_LOG_STD, MAX_LOG_STD = -20, 2


def _sized(ModelCls: ModelClass, given: Mapping[str, Any] | None, hidden_sizes: list[int]) -> dict[str, Any]:
    """Return a model's arguments: the user's, or the sizes of hidden layers where it takes them."""
    if given is not None:
        return dict(given)
    return {"hidden_sizes": hidden_sizes} if "hidden_sizes" in inspect.signature(ModelCls).parameters else {}


class _ActorCriticAgent(BaseAgent):
    """The parts that these agents share."""

    def make_env_to_model_kwargs(self, env_spaces: Any) -> dict[str, Any]:
        """Return observation_shape and action_size."""
        shape: tuple[int, ...] = getattr(env_spaces.action, "shape", ())
        if len(shape) != 1:
            raise TypeError(f"{type(self).__name__} wants real-valued actions [n], found the space {env_spaces.action}")
        return {"observation_shape": env_spaces.observation.shape, "action_size": shape[0]}

    def _high(self) -> float:
        """Return the bound of the first entry of actions, which stands for all; other bounds are logged."""
        action = self.env_spaces.action
        bounds = {*map(float, action.high), *(-float(each) for each in action.low)}
        if len(bounds) != 1:
            logger.log(
                f"{type(self).__name__} acts between -high and high, the same for all entries; the env's bounds are "
                f"{[float(each) for each in action.low]} to {[float(each) for each in action.high]}"
            )
        return float(action.high[0])

    def _q(self, model: Any, inputs: Sequence[Any]) -> Tensor:
        value = model(*inputs)
        return one_per_row(value, inputs[-1].shape[:-1], f"{type(model).__name__}.forward")

    def _models(self) -> dict[str, Any]:
        """Return all models by the names of the state dict."""
        raise NotImplementedError

    def to_device(self, cuda_idx: int | None = None) -> None:
        """Move all models."""
        super().to_device(cuda_idx)
        for model in self._models().values():
            model.to(self.device)

    def data_parallel(self) -> int | None:
        """Let the gradients of all models be the mean over all processes."""
        for name, model in self._models().items():
            if not name.startswith("target"):
                average_gradients(model)
        return self.device.index

    def train_mode(self, itr: int) -> None:
        """Be ready to learn."""
        super().train_mode(itr)
        self._set_training(True)

    def sample_mode(self, itr: int) -> None:
        """Explore, from iteration `itr` on."""
        super().sample_mode(itr)
        self._set_training(False)

    def eval_mode(self, itr: int) -> None:
        """Act without noise."""
        super().eval_mode(itr)
        self._set_training(False)
        self.distribution.set_std(0.0)

    def _set_training(self, training: bool) -> None:
        for name, model in self._models().items():
            if not name.startswith("target"):
                model.train(training)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of all models, as copies."""
        return {name: copied(model) for name, model in self._models().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with saved weights."""
        for name, model in self._models().items():
            model.load_state_dict(state_dict[name])


class _SoftAgent(_ActorCriticAgent):
    """A squashed Gaussian and two Q-models; subclasses add the targets."""

    def __init__(
        self,
        ModelCls: ModelClass,
        QModelCls: ModelClass,
        model_kwargs: Mapping[str, Any] | None,
        q_model_kwargs: Mapping[str, Any] | None,
        initial_model_state_dict: Mapping[str, Any] | None,
        action_squash: float | None,
        pretrain_std: float,
    ) -> None:
        super().__init__(ModelCls, _sized(ModelCls, model_kwargs, [256, 256]), initial_model_state_dict)
        self.QModelCls, self.q_model_kwargs = QModelCls, _sized(QModelCls, q_model_kwargs, [256, 256])
        self.action_squash, self.pretrain_std = action_squash, pretrain_std
        self.min_itr_learn = 0

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build actor, critics and targets."""
        initial, self.initial_model_state_dict = self.initial_model_state_dict, None
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        self.initial_model_state_dict = initial
        self.q1_model, self.q2_model = (self.build_model(self.QModelCls, self.q_model_kwargs) for _ in range(2))
        self._build_targets()
        self.update_target()
        if initial is not None:
            self.load_state_dict(initial)
        high = self._high()
        if self.action_squash is not None and not math.isclose(high, self.action_squash):
            logger.log(
                f"{type(self).__name__}: the env takes actions up to {high:g}, action_squash is {self.action_squash:g}"
            )
        self.distribution = Gaussian(
            dim=self.env_spaces.action.shape[0],
            squash=self.action_squash,
            min_std=math.exp(MIN_LOG_STD),
            max_std=math.exp(MAX_LOG_STD),
        )

    def _build_targets(self) -> None:
        raise NotImplementedError

    def update_target(self, tau: float = 1) -> None:
        """Move the targets."""
        raise NotImplementedError

    def give_min_itr_learn(self, min_itr_learn: int) -> None:
        """Set the iteration from which the learned std is used; the algorithm calls this."""
        self.min_itr_learn = min_itr_learn

    def q(self, observation: Any, prev_action: Any, prev_reward: Any, action: Any) -> Any:
        """Return both Q-values, with gradients."""
        inputs = self._inputs(observation, prev_action, prev_reward, action)
        return self._outputs(self._q(self.q1_model, inputs), self._q(self.q2_model, inputs))

    def pi(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Sample actions; return them, their log-likelihoods and the parameters, with gradients."""
        dist_info = self._dist_info(observation, prev_action, prev_reward)
        action, log_pi = self.distribution.sample_loglikelihood(dist_info)
        return action, *self._outputs(log_pi, dist_info)

    def _dist_info(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        mean, log_std = self.model(*self._inputs(observation, prev_action, prev_reward))
        return DistInfoStd(mean=mean, log_std=log_std.expand_as(mean))

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Sample actions."""
        self._sampled(observation)
        dist_info = self._dist_info(observation, prev_action, prev_reward)
        action = self.distribution.sample(dist_info)
        return AgentStep(*self._outputs(action, SacAgentInfo(dist_info=dist_info)))

    def sample_mode(self, itr: int) -> None:
        """Explore: with `pretrain_std` before the algorithm learns, with the learned std after that."""
        super().sample_mode(itr)
        self.distribution.set_std(None if itr >= self.min_itr_learn else self.pretrain_std)

    def train_mode(self, itr: int) -> None:
        """Be ready to learn, with the learned std."""
        super().train_mode(itr)
        self.distribution.set_std(None)

    def pi_parameters(self) -> Any:
        """Return what the actor learns."""
        return self.model.parameters()

    def q1_parameters(self) -> Any:
        """Return what the first critic learns."""
        return self.q1_model.parameters()

    def q2_parameters(self) -> Any:
        """Return what the second critic learns."""
        return self.q2_model.parameters()

    def _models(self) -> dict[str, Any]:
        return {"model": self.model, "q1_model": self.q1_model, "q2_model": self.q2_model}


class SacAgent(_SoftAgent):
    """A squashed Gaussian, two Q-models and their targets."""

    def __init__(
        self,
        ModelCls: ModelClass = PiMlpModel,
        QModelCls: ModelClass = QofMuMlpModel,
        model_kwargs: Mapping[str, Any] | None = None,
        q_model_kwargs: Mapping[str, Any] | None = None,
        v_model_kwargs: Mapping[str, Any] | None = None,
        initial_model_state_dict: Mapping[str, Any] | None = None,
        action_squash: float | None = 1.0,
        pretrain_std: float = 0.75,
    ) -> None:
        """Store the models' classes; `pretrain_std` is the noise before the algorithm learns."""
        super().__init__(
            ModelCls, QModelCls, model_kwargs, q_model_kwargs, initial_model_state_dict, action_squash, pretrain_std
        )
        if v_model_kwargs is not None:
            logger.log("SacAgent: v_model_kwargs has no effect, SAC has no model of V")

    def _build_targets(self) -> None:
        self.target_q1_model, self.target_q2_model = (
            self.build_model(self.QModelCls, self.q_model_kwargs) for _ in range(2)
        )

    def target_q(self, observation: Any, prev_action: Any, prev_reward: Any, action: Any) -> Any:
        """Return both Q-values of the target models."""
        inputs = self._inputs(observation, prev_action, prev_reward, action)
        return self._outputs(self._q(self.target_q1_model, inputs), self._q(self.target_q2_model, inputs))

    def update_target(self, tau: float = 1) -> None:
        """Move the target critics to the critics."""
        update_state_dict(self.target_q1_model, self.q1_model.state_dict(), tau)
        update_state_dict(self.target_q2_model, self.q2_model.state_dict(), tau)

    @property
    def models(self) -> Models:
        """The models that are learned."""
        return Models(pi=self.model, q1=self.q1_model, q2=self.q2_model)

    def _models(self) -> dict[str, Any]:
        targets = {"target_q1_model": self.target_q1_model, "target_q2_model": self.target_q2_model}
        return {**super()._models(), **targets}


class SacVAgent(_SoftAgent):
    """A squashed Gaussian, two Q-models, and a model of V with a target; rlpyt's `sac_v_agent.SacAgent`."""

    def __init__(
        self,
        ModelCls: ModelClass = PiMlpModel,
        QModelCls: ModelClass = QofMuMlpModel,
        VModelCls: ModelClass = VMlpModel,
        model_kwargs: Mapping[str, Any] | None = None,
        q_model_kwargs: Mapping[str, Any] | None = None,
        v_model_kwargs: Mapping[str, Any] | None = None,
        initial_model_state_dict: Mapping[str, Any] | None = None,
        action_squash: float | None = 1.0,
        pretrain_std: float = 0.75,
    ) -> None:
        """Store the models' classes; `pretrain_std` is the noise before the algorithm learns."""
        super().__init__(
            ModelCls, QModelCls, model_kwargs, q_model_kwargs, initial_model_state_dict, action_squash, pretrain_std
        )
        self.VModelCls, self.v_model_kwargs = VModelCls, _sized(VModelCls, v_model_kwargs, [256, 256])

    def _build_targets(self) -> None:
        self.v_model, self.target_v_model = (self.build_model(self.VModelCls, self.v_model_kwargs) for _ in range(2))

    def v(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Return the values of observations, with gradients."""
        return self._v(self.v_model, observation, prev_action, prev_reward)

    def target_v(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Return the values of observations by the target model."""
        return self._v(self.target_v_model, observation, prev_action, prev_reward)

    def _v(self, model: Any, *given: Any) -> Any:
        inputs = self._inputs(*given)
        value = model(*inputs)
        return self._outputs(one_per_row(value, value.shape[: inputs[2].dim()], f"{type(model).__name__}.forward"))

    def update_target(self, tau: float = 1) -> None:
        """Move the target of V to V."""
        update_state_dict(self.target_v_model, self.v_model.state_dict(), tau)

    @property
    def models(self) -> SacVModels:
        """The models that are learned."""
        return SacVModels(pi=self.model, q1=self.q1_model, q2=self.q2_model, v=self.v_model)

    def v_parameters(self) -> Any:
        """Return what the model of V learns."""
        return self.v_model.parameters()

    def _models(self) -> dict[str, Any]:
        return {**super()._models(), "v_model": self.v_model, "target_v_model": self.target_v_model}


class DdpgAgent(_ActorCriticAgent):
    """A deterministic actor with noise, and one Q-model."""

    def __init__(
        self,
        ModelCls: ModelClass = MuMlpModel,
        QModelCls: ModelClass = QofMuMlpModel,
        model_kwargs: Mapping[str, Any] | None = None,
        q_model_kwargs: Mapping[str, Any] | None = None,
        initial_model_state_dict: Mapping[str, Any] | None = None,
        initial_q_model_state_dict: Mapping[str, Any] | None = None,
        action_std: float = 0.1,
        action_noise_clip: float | None = None,
    ) -> None:
        """Store the models' classes and the noise of actions."""
        super().__init__(ModelCls, _sized(ModelCls, model_kwargs, [400, 300]), initial_model_state_dict)
        self.QModelCls, self.q_model_kwargs = QModelCls, _sized(QModelCls, q_model_kwargs, [400, 300])
        self.initial_q_model_state_dict = initial_q_model_state_dict
        self.action_std, self.action_noise_clip = action_std, action_noise_clip

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build actor, critic and targets."""
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        self.q_model, self.target_q_model = (self.build_model(self.QModelCls, self.q_model_kwargs) for _ in range(2))
        self.target_model = self.build_model(self.ModelCls, self.model_kwargs)
        if self.initial_q_model_state_dict is not None:
            self.q_model.load_state_dict(self.initial_q_model_state_dict)
        self.target_model.load_state_dict(self.model.state_dict())
        self.target_q_model.load_state_dict(self.q_model.state_dict())
        self.distribution = Gaussian(
            dim=self.env_spaces.action.shape[0],
            std=self.action_std,
            noise_clip=self.action_noise_clip,
            clip=self._high(),
        )

    def q(self, observation: Any, prev_action: Any, prev_reward: Any, action: Any) -> Any:
        """Return the Q-values of actions, with gradients."""
        inputs = self._inputs(observation, prev_action, prev_reward, action)
        return self._outputs(self._q(self.q_model, inputs))

    def q_at_mu(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Return the Q-values of the actor's own actions, with gradients."""
        inputs = self._inputs(observation, prev_action, prev_reward)
        return self._outputs(self._q(self.q_model, (*inputs, self.model(*inputs))))

    def target_q_at_mu(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Return the Q-values of the target actor's actions by the target critic."""
        inputs = self._inputs(observation, prev_action, prev_reward)
        return self._outputs(self._q(self.target_q_model, (*inputs, self.target_model(*inputs))))

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Return the actor's actions with noise."""
        self._sampled(observation)
        mu = self.model(*self._inputs(observation, prev_action, prev_reward))
        action = self.distribution.sample(GaussianDistInfo(mean=mu))
        return AgentStep(*self._outputs(action, DdpgAgentInfo(mu=mu)))

    def update_target(self, tau: float = 1) -> None:
        """Move the targets to actor and critic."""
        update_state_dict(self.target_model, self.model.state_dict(), tau)
        update_state_dict(self.target_q_model, self.q_model.state_dict(), tau)

    def sample_mode(self, itr: int) -> None:
        """Explore with `action_std`."""
        super().sample_mode(itr)
        self.distribution.set_std(self.action_std)

    def q_parameters(self) -> Any:
        """Return what the critic learns."""
        return self.q_model.parameters()

    def mu_parameters(self) -> Any:
        """Return what the actor learns."""
        return self.model.parameters()

    def _models(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "q_model": self.q_model,
            "target_model": self.target_model,
            "target_q_model": self.target_q_model,
        }


class Td3Agent(DdpgAgent):
    """A deterministic actor with noise, and two Q-models; target actions have noise of their own."""

    def __init__(
        self,
        ModelCls: ModelClass = MuMlpModel,
        QModelCls: ModelClass = QofMuMlpModel,
        model_kwargs: Mapping[str, Any] | None = None,
        q_model_kwargs: Mapping[str, Any] | None = None,
        initial_model_state_dict: Mapping[str, Any] | None = None,
        initial_q_model_state_dict: Mapping[str, Any] | None = None,
        action_std: float = 0.1,
        action_noise_clip: float | None = None,
        *,
        pretrain_std: float = 0.5,
        target_noise_std: float = 0.2,
        target_noise_clip: float | None = 0.5,
        initial_q2_model_state_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the models' classes and the noises; `pretrain_std` is that before the algorithm learns."""
        super().__init__(
            ModelCls,
            QModelCls,
            model_kwargs,
            q_model_kwargs,
            initial_model_state_dict,
            initial_q_model_state_dict,
            action_std,
            action_noise_clip,
        )
        self.pretrain_std, self.initial_q2_model_state_dict = pretrain_std, initial_q2_model_state_dict
        self.target_noise_std, self.target_noise_clip = target_noise_std, target_noise_clip
        self.min_itr_learn = 0

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build actor, critics and targets."""
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        self.q2_model, self.target_q2_model = (self.build_model(self.QModelCls, self.q_model_kwargs) for _ in range(2))
        if self.initial_q2_model_state_dict is not None:
            self.q2_model.load_state_dict(self.initial_q2_model_state_dict)
        self.target_q2_model.load_state_dict(self.q2_model.state_dict())
        self.target_distribution = Gaussian(
            dim=self.env_spaces.action.shape[0],
            std=self.target_noise_std,
            noise_clip=self.target_noise_clip,
            clip=self._high(),
        )

    def give_min_itr_learn(self, min_itr_learn: int) -> None:
        """Set the iteration from which `action_std` is used; the algorithm calls this."""
        self.min_itr_learn = min_itr_learn

    def q(self, observation: Any, prev_action: Any, prev_reward: Any, action: Any) -> Any:
        """Return both Q-values of actions, with gradients."""
        inputs = self._inputs(observation, prev_action, prev_reward, action)
        return self._outputs(self._q(self.q_model, inputs), self._q(self.q2_model, inputs))

    def target_q_at_mu(self, observation: Any, prev_action: Any, prev_reward: Any) -> Any:
        """Return both Q-values of the target actor's actions with noise, by the target critics."""
        inputs = self._inputs(observation, prev_action, prev_reward)
        action = self.target_distribution.sample(GaussianDistInfo(mean=self.target_model(*inputs)))
        inputs = (*inputs, action)
        return self._outputs(self._q(self.target_q_model, inputs), self._q(self.target_q2_model, inputs))

    def set_target_noise(self, std: float, noise_clip: float | None = None) -> None:
        """Change the noise of target actions."""
        self.target_distribution.set_std(std)
        self.target_distribution.set_noise_clip(noise_clip)

    def update_target(self, tau: float = 1) -> None:
        """Move the targets to actor and critics."""
        super().update_target(tau)
        update_state_dict(self.target_q2_model, self.q2_model.state_dict(), tau)

    def sample_mode(self, itr: int) -> None:
        """Explore: with `pretrain_std` before the algorithm learns, with `action_std` after that."""
        super().sample_mode(itr)
        self.distribution.set_std(self.action_std if itr >= self.min_itr_learn else self.pretrain_std)

    def q_parameters(self) -> Iterator[Any]:
        """Yield what both critics learn."""
        yield from self.q_model.parameters()
        yield from self.q2_model.parameters()

    def _models(self) -> dict[str, Any]:
        return {**super()._models(), "q2_model": self.q2_model, "target_q2_model": self.target_q2_model}
