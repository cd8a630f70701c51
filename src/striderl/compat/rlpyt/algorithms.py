"""rlpyt's algorithms on policy: the base class of all algorithms, policy gradients, A2C and PPO.

    algo = PPO(discount=0.99, learning_rate=1e-3, epochs=4)                     made before the agent has a model
    algo.initialize(agent, n_itr, batch_spec, mid_batch_reset, examples)        builds the optimiser
    opt_info = algo.optimize_agent(itr, samples)         OptInfo: a number, or a list with one per gradient step
    return_, advantage, valid = algo.process_returns(samples)                   [T, B] each
    loss, entropy, perplexity = algo.loss(…)             called for every gradient step: override it

An algorithm of one's own derives from `RlAlgorithm` and defines `initialize` and `optimize_agent`; or from
`PolicyGradientAlgo`, which has the optimiser and the returns.

Where the clock ended an episode within a batch, V(s_t) stands for the value of what followed, which a batch does not
hold; rlpyt takes such an end for the end of the task. After a reset the agent gets zeros as previous action and reward,
as it did while sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from striderl.collect.samplers.samples import seen_by_agent, valid_from_done
from striderl.compat.rlpyt.tensors import iterate_mb_idxs, valid_mean
from striderl.data.buffers import buffer_method, buffer_to
from striderl.data.named_tuples import ArrayTuple, namedarraytuple
from striderl.ops.returns import gae

OptimizerClass = Callable[..., Any]

LossInputs = namedarraytuple("LossInputs", ["agent_inputs", "action", "return_", "advantage", "valid", "old_dist_info"])


class OptInfo(NamedTuple):
    """What a policy-gradient algorithm returns of its gradient steps: a number each, or lists of them."""

    loss: Any
    gradNorm: Any  # noqa: N815  (rlpyt's names)
    entropy: Any
    perplexity: Any


class RlAlgorithm:
    """The methods that runners call; define `initialize` and `optimize_agent`."""

    opt_info_fields: ClassVar[tuple[str, ...]] = ()
    """The fields of an OptInfo that runners log."""
    bootstrap_value: ClassVar[bool] = False
    """Whether samples hold the value of what followed their last step."""
    update_counter: int = 0
    """Gradient steps so far."""
    optimizer: Any
    _batch_size: int

    def initialize(
        self,
        agent: Any,
        n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool,
        examples: Any,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        """Take an agent whose model is built, and the size of batches; build optimisers and buffers.

        Args:
            agent: the agent.
            n_itr: how often `optimize_agent` will be called.
            batch_spec: `T`, `B` and `size` of a batch.
            mid_batch_reset: whether episodes start within a batch.
            examples: one env's data by name: observation, action, reward, done, agent_info, env_info.
            world_size: the number of processes that learn together.
            rank: the number of this one.
        """
        raise NotImplementedError

    def async_initialize(
        self,
        agent: Any,
        sampler_n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool,
        examples: Any,
        world_size: int = 1,
    ) -> Any:
        """Do what `initialize` does for `AsyncRl`, without optimisers; return a replay that is written meanwhile."""
        raise NotImplementedError(f"{type(self).__name__} defines no async_initialize, which AsyncRl calls")

    def optim_initialize(self, rank: int = 0) -> None:
        """Build the optimisers; `AsyncRl` calls it after `async_initialize`."""
        raise NotImplementedError(f"{type(self).__name__} defines no optim_initialize, which AsyncRl calls")

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> Any:
        """Learn from a batch; return a named tuple with `opt_info_fields`."""
        raise NotImplementedError

    def optim_state_dict(self) -> Any:
        """Return the state of the optimiser."""
        return self.optimizer.state_dict()

    def load_optim_state_dict(self, state_dict: Any) -> None:
        """Go on with a saved state."""
        self.optimizer.load_state_dict(state_dict)

    @property
    def batch_size(self) -> int:
        """Samples of a gradient step, for logs."""
        return getattr(self, "_batch_size", 0)


RLAlgorithm = RlAlgorithm


def require_initialized(algo: RlAlgorithm) -> None:
    """Raise where `optimize_agent` is called before `initialize`."""
    if not hasattr(algo, "agent"):
        raise RuntimeError(f"{type(algo).__name__}.optimize_agent comes after initialize")


def require_agent(algo: RlAlgorithm, agent: Any, *methods: str) -> None:
    """Raise for an agent that lacks what an algorithm calls, or whose model is not built yet."""
    missing = [name for name in methods if not callable(getattr(agent, name, None))]
    if missing:
        raise TypeError(
            f"{type(algo).__name__} wants an agent with {', '.join(methods)}; {type(agent).__name__} lacks "
            f"{', '.join(missing)}"
        )
    if getattr(agent, "model", True) is None:
        raise RuntimeError("the agent has no model yet: call sampler.initialize(agent) or agent.initialize first")


def number(value: Any) -> float:
    """Return a tensor of one entry, or a number, as a float without gradient."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def gradient_step(optimizer: Any, loss: Tensor, parameters: Any, clip_grad_norm: float | None) -> float:
    """Step an optimiser down a loss and return the norm of the gradient before clipping."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    limit = float("inf") if clip_grad_norm is None else float(clip_grad_norm)
    norm = nn.utils.clip_grad_norm_(list(parameters), limit)
    optimizer.step()
    return number(norm)


# -- policy gradients --------------------------------------------------------------------------------------------------


class PolicyGradientAlgo(RlAlgorithm):
    """The optimiser and the returns of policy gradients; define `optimize_agent` and `loss`."""

    bootstrap_value: ClassVar[bool] = True
    opt_info_fields: ClassVar[tuple[str, ...]] = OptInfo._fields

    discount: float
    """Set by a subclass, like the others; those that it does not set are off, Adam and 1e-3."""
    gae_lambda: float
    learning_rate: float
    normalize_advantage: bool
    clip_grad_norm: float | None
    OptimCls: Any
    optim_kwargs: Mapping[str, Any] | None
    initial_optim_state_dict: Any

    def initialize(
        self,
        agent: Any,
        n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool = False,
        examples: Any = None,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        """Build the optimiser of the agent's parameters."""
        require_agent(self, agent, "__call__", "value")
        kind, kwargs = getattr(self, "OptimCls", torch.optim.Adam), getattr(self, "optim_kwargs", None) or {}
        self.optimizer = kind(agent.parameters(), lr=getattr(self, "learning_rate", 1e-3), **kwargs)
        initial = getattr(self, "initial_optim_state_dict", None)
        if initial is not None:
            self.load_optim_state_dict(initial)
        self.agent, self.n_itr, self.batch_spec = agent, n_itr, batch_spec
        self.mid_batch_reset, self.examples = mid_batch_reset, examples
        self.world_size, self.rank = world_size, rank
        self._batch_size = batch_spec.size

    def process_returns(self, samples: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return (return_, advantage, valid), [T, B] each: discounted returns, or GAE where `gae_lambda` is not 1.

        `valid` is None when every sample counts: with resets within the batch and an agent without state. Otherwise it
        is 1 up to and including the first end of each column, and 0 after it.
        """
        env, agent = samples.env, samples.agent
        if "bootstrap_value" not in agent:
            raise ValueError(
                "process_returns wants samples with bootstrap_value: sampler.initialize(bootstrap_value=True)"
            )
        value, done = agent.agent_info.value, env.done.bool()
        terminated, truncated = (env.terminated, env.truncated) if "truncated" in env else (done, done & False)
        counts = self._counts(samples, done)
        following = torch.cat([value[1:], agent.bootstrap_value])
        late = (truncated & ~terminated)[:-1]
        following[:-1] = torch.where(late, value[:-1], following[:-1])
        return_, advantage = gae(
            env.reward,
            value,
            following,
            terminated,
            truncated,
            gamma=float(self.discount),
            lam=float(getattr(self, "gae_lambda", 1)),
            valid=counts,
        )
        everything = self.mid_batch_reset and not self.agent.recurrent and bool(counts.all())
        valid = None if everything else counts.to(value.dtype)
        if getattr(self, "normalize_advantage", False):
            counted = advantage[counts]
            scaled = (advantage - counted.mean()) / counted.std().clamp(min=1e-6)
            advantage = torch.where(counts, scaled, torch.zeros_like(scaled))
        return return_, advantage, valid

    def _counts(self, samples: Any, done: Tensor) -> Tensor:
        """Return which samples count, bool [T, B]."""
        valid: Tensor = samples.env.valid if "valid" in samples.env else torch.ones_like(done)
        if self.mid_batch_reset and not self.agent.recurrent:
            return valid
        return valid & valid_from_done(done).bool()

    def agent_inputs(self, samples: Any) -> ArrayTuple:
        """Return observation, previous action and previous reward as the agent got them, [T, B, …]."""
        return seen_by_agent(samples)

    def init_rnn_state(self, samples: Any) -> Any:
        """Return the state [B, N, H] before the first step of a batch; None where the agent has none."""
        return samples.agent.agent_info.prev_rnn_state[0] if self.agent.recurrent else None

    def _agent_train(self, agent_inputs: Any, init_rnn_state: Any) -> tuple[Any, Tensor]:
        """Call the agent; a state [B, N, H] is passed on as [N, B, H]."""
        if init_rnn_state is None:
            dist_info, value = self.agent(*agent_inputs)
        else:
            state = buffer_method(buffer_method(init_rnn_state, "transpose", 0, 1), "contiguous")
            dist_info, value, _ = self.agent(*agent_inputs, state)
        return dist_info, value

    def _update_observation_statistics(self, observation: Any) -> None:
        if hasattr(self.agent, "update_obs_rms"):
            self.agent.update_obs_rms(observation)


class A2C(PolicyGradientAlgo):
    """One gradient step per batch."""

    def __init__(
        self,
        discount: float = 0.99,
        learning_rate: float = 0.001,
        value_loss_coeff: float = 0.5,
        entropy_loss_coeff: float = 0.01,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        clip_grad_norm: float | None = 1.0,
        initial_optim_state_dict: Any = None,
        gae_lambda: float = 1,
        normalize_advantage: bool = False,
    ) -> None:
        """Store the settings, each an attribute that is read when it is used."""
        self.discount, self.learning_rate, self.gae_lambda = discount, learning_rate, gae_lambda
        self.value_loss_coeff, self.entropy_loss_coeff = value_loss_coeff, entropy_loss_coeff
        self.OptimCls, self.optim_kwargs = OptimCls, dict(optim_kwargs or {})
        self.clip_grad_norm, self.initial_optim_state_dict = clip_grad_norm, initial_optim_state_dict
        self.normalize_advantage = normalize_advantage

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> OptInfo:
        """Take one gradient step on a batch."""
        require_initialized(self)
        self._update_observation_statistics(samples.env.observation)
        loss, entropy, perplexity = self.loss(samples)
        norm = gradient_step(self.optimizer, loss, self.agent.parameters(), self.clip_grad_norm)
        self.update_counter += 1
        return OptInfo(number(loss), norm, number(entropy), number(perplexity))

    def loss(self, samples: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return policy loss + value loss - entropy bonus; the entropy; the perplexity."""
        return_, advantage, valid = self.process_returns(samples)
        dist_info, value = self._agent_train(self.agent_inputs(samples), self.init_rnn_state(samples))
        dist = self.agent.distribution
        pi_loss = -valid_mean(dist.log_likelihood(samples.agent.action, dist_info) * advantage, valid)
        value_loss = self.value_loss_coeff * valid_mean(0.5 * (value - return_) ** 2, valid)
        entropy = dist.mean_entropy(dist_info, valid)
        loss = pi_loss + value_loss - self.entropy_loss_coeff * entropy
        return loss, entropy, dist.mean_perplexity(dist_info, valid)


class PPO(PolicyGradientAlgo):
    """Several epochs of minibatches per batch, with clipped likelihood ratios."""

    def __init__(
        self,
        discount: float = 0.99,
        learning_rate: float = 0.001,
        value_loss_coeff: float = 1.0,
        entropy_loss_coeff: float = 0.01,
        OptimCls: OptimizerClass = torch.optim.Adam,
        optim_kwargs: Mapping[str, Any] | None = None,
        clip_grad_norm: float | None = 1.0,
        initial_optim_state_dict: Any = None,
        gae_lambda: float = 1,
        minibatches: int = 4,
        epochs: int = 4,
        ratio_clip: float = 0.1,
        linear_lr_schedule: bool = True,
        normalize_advantage: bool = False,
    ) -> None:
        """Store the settings; with `linear_lr_schedule` learning rate and `ratio_clip` fall to 0 over the run."""
        self.discount, self.learning_rate, self.gae_lambda = discount, learning_rate, gae_lambda
        self.value_loss_coeff, self.entropy_loss_coeff = value_loss_coeff, entropy_loss_coeff
        self.OptimCls, self.optim_kwargs = OptimCls, dict(optim_kwargs or {})
        self.clip_grad_norm, self.initial_optim_state_dict = clip_grad_norm, initial_optim_state_dict
        self.minibatches, self.epochs, self.ratio_clip = minibatches, epochs, ratio_clip
        self.linear_lr_schedule, self.normalize_advantage = linear_lr_schedule, normalize_advantage

    def initialize(
        self,
        agent: Any,
        n_itr: int,
        batch_spec: Any,
        mid_batch_reset: bool = False,
        examples: Any = None,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        """Build the optimiser and the schedule of its learning rate."""
        super().initialize(agent, n_itr, batch_spec, mid_batch_reset, examples, world_size, rank)
        rows = batch_spec.B if agent.recurrent else batch_spec.size
        if not 1 <= self.minibatches <= rows:
            what = "envs, whose sequences stay whole" if agent.recurrent else "samples"
            raise ValueError(
                f"PPO wants 1 to {rows} minibatches of a batch with {rows} {what}, found {self.minibatches}"
            )
        self._batch_size = batch_spec.size // self.minibatches
        if self.linear_lr_schedule:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda itr: max(0.0, (self.n_itr - itr) / self.n_itr)
            )
            self._ratio_clip = self.ratio_clip

    def optimize_agent(self, itr: int, samples: Any = None, sampler_itr: int | None = None) -> OptInfo:
        """Take `epochs` · `minibatches` gradient steps on a batch; a last minibatch that is not full is left out."""
        require_initialized(self)
        recurrent, device = self.agent.recurrent, samples.agent.action.device
        inputs = self.agent_inputs(samples)
        self._update_observation_statistics(inputs.observation)
        return_, advantage, valid = self.process_returns(samples)
        loss_inputs = LossInputs(
            agent_inputs=buffer_to(inputs, self.agent.device),
            action=samples.agent.action,
            return_=return_.to(device),
            advantage=advantage.to(device),
            valid=None if valid is None else valid.to(device),
            old_dist_info=samples.agent.agent_info.dist_info,
        )
        init_rnn_state = self.init_rnn_state(samples)
        T, B = samples.env.reward.shape[:2]
        rows = B if recurrent else T * B
        opt_info = OptInfo([], [], [], [])
        for _ in range(self.epochs):
            for idxs in iterate_mb_idxs(rows, rows // self.minibatches, shuffle=True):
                T_idxs, B_idxs = (slice(None), idxs) if recurrent else (idxs % T, idxs // T)
                rnn_state = None if init_rnn_state is None else init_rnn_state[B_idxs]
                inputs_of_loss: tuple[Any, ...] = (*loss_inputs[T_idxs, B_idxs], rnn_state)
                loss, entropy, perplexity = self.loss(*inputs_of_loss)
                norm = gradient_step(self.optimizer, loss, self.agent.parameters(), self.clip_grad_norm)
                for found, value in zip(opt_info, (loss, norm, entropy, perplexity)):
                    found.append(number(value))
                self.update_counter += 1
        if self.linear_lr_schedule:
            self.lr_scheduler.step()
            self.ratio_clip = self._ratio_clip * (self.n_itr - itr) / self.n_itr
        return opt_info

    def loss(
        self,
        agent_inputs: Any,
        action: Tensor,
        return_: Tensor,
        advantage: Tensor,
        valid: Tensor | None,
        old_dist_info: Any,
        init_rnn_state: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return policy loss + value loss - entropy bonus; the entropy; the perplexity.

        Inputs are [samples, …], or [T, envs, …] with the states [envs, N, H] of a recurrent agent.
        """
        dist_info, value = self._agent_train(agent_inputs, init_rnn_state)
        dist = self.agent.distribution
        ratio = dist.likelihood_ratio(action, old_dist_info=old_dist_info, new_dist_info=dist_info)
        clipped = ratio.clamp(1.0 - self.ratio_clip, 1.0 + self.ratio_clip)
        pi_loss = -valid_mean(torch.min(ratio * advantage, clipped * advantage), valid)
        value_loss = self.value_loss_coeff * valid_mean(0.5 * (value - return_) ** 2, valid)
        entropy = dist.mean_entropy(dist_info, valid)
        loss = pi_loss + value_loss - self.entropy_loss_coeff * entropy
        return loss, entropy, dist.mean_perplexity(dist_info, valid)
