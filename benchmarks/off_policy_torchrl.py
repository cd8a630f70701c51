"""TorchRL in the off-policy benchmarks: `DQNLoss` and `SACLoss` with its replay buffer and target updaters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Task, Work, repeated_work, steps_of
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.data import Categorical, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import DQNLoss, HardUpdate, SACLoss, SoftUpdate


def update(task: Task) -> Work:
    """Return some gradient steps."""
    replay = _replay(task)
    step = _dqn(task, replay) if task.algorithm == "dqn" else _sac(task, replay)
    return repeated_work(step, task.updates_per_sample)


def _replay(task: Task) -> TensorDictReplayBuffer:
    steps = steps_of(task)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(NUM_STEPS), batch_size=task.batch_size)
    done = torch.from_numpy(steps.terminated).unsqueeze(-1)
    following = {
        "observation": torch.from_numpy(steps.obs[1:]),
        "reward": torch.from_numpy(steps.rew).unsqueeze(-1),
        "done": done,
        "terminated": done,
    }
    now = {"observation": torch.from_numpy(steps.obs[:-1]), "action": torch.from_numpy(steps.act)}
    replay.extend(TensorDict({**now, "next": TensorDict(following, [NUM_STEPS])}, [NUM_STEPS]))
    return replay


def _layers(inputs: int, outputs: int, task: Task) -> MLP:
    return MLP(in_features=inputs, out_features=outputs, num_cells=list(task.hidden), activation_class=nn.ReLU)


def _dqn(task: Task, replay: TensorDictReplayBuffer) -> Callable[[], object]:
    network = _layers(task.obs_size, task.action_size, task)
    actor = QValueActor(network, in_keys=["observation"], spec=Categorical(task.action_size))
    loss = DQNLoss(actor, loss_function="l2", delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=GAMMA)
    target = HardUpdate(loss, value_network_update_interval=TARGET_EVERY)
    optimizer = torch.optim.Adam(loss.parameters(), lr=task.learning_rate)

    def step() -> None:
        value = loss(replay.sample())["loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        target.step()

    return step


def _sac(task: Task, replay: TensorDictReplayBuffer) -> Callable[[], object]:
    body = nn.Sequential(_layers(task.obs_size, 2 * task.action_size, task), NormalParamExtractor())
    module = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True)
    critic = ValueOperator(_layers(task.obs_size + task.action_size, 1, task), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2", target_entropy=-float(task.action_size))
    loss.make_value_estimator(gamma=GAMMA)
    target = SoftUpdate(loss, tau=TAU)
    optimizer = torch.optim.Adam(loss.parameters(), lr=task.learning_rate)

    def step() -> None:
        found = loss(replay.sample())
        optimizer.zero_grad()
        (found["loss_actor"] + found["loss_qvalue"] + found["loss_alpha"]).backward()
        optimizer.step()
        target.step()

    return step
