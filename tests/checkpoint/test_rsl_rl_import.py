"""rsl_rl's checkpoints of every generation, rebuilt here with plain torch modules of the same names."""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointError
from striderl.checkpoint.foreign import read_rsl_rl
from striderl.policies.policy import Policy
from striderl.policies.presets.base import ActorCritic
from striderl.policies.transfer.load import TransferError
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl, policy_from_rsl_rl

NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS, NUM_ENVS = 7, 9, 3, 5


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ELU(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, outputs))


class Holder(nn.Module):
    """rsl_rl keeps its recurrent layer in a module of its own, under the name 'rnn'."""

    def __init__(self, kind: str, inputs: int) -> None:
        super().__init__()
        self.rnn = (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, 6, 2)


class Normalizer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("_mean", torch.randn(1, size))
        self.register_buffer("_var", torch.rand(1, size) + 0.1)
        self.register_buffer("_std", self._var.sqrt())
        self.register_buffer("count", torch.tensor(4096))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self._mean) / (self._std + 1e-2)


class Reference(nn.Module):
    """The network that rsl_rl runs, for one of actor and critic."""

    def __init__(self, size: int, outputs: int, kind: str, normalized: bool) -> None:
        super().__init__()
        self.normalizer = Normalizer(size) if normalized else nn.Identity()
        self.memory = Holder(kind, size) if kind else None
        self.mlp = mlp(6 if kind else size, outputs)

    def forward(self, obs_T: Tensor) -> Tensor:
        x = self.normalizer(obs_T)
        return self.mlp(self.memory.rnn(x)[0] if self.memory is not None else x)


def save(path, generation: int, actor: Reference, critic: Reference, std: Tensor, log: bool) -> None:
    """Write what the runner of that generation writes."""
    name, value = ("log_std", std.log()) if log else ("std", std)
    value = nn.Parameter(value)

    def named(module: Reference, mlp_name: str, memory_name: str) -> dict[str, Tensor]:
        found = {f"{mlp_name}.{key}": tensor for key, tensor in module.mlp.state_dict().items()}
        if module.memory is not None:
            found |= {f"{memory_name}.{key}": tensor for key, tensor in module.memory.state_dict().items()}
        return found

    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    content = {"optimizer_state_dict": optimizer.state_dict(), "iter": 137, "infos": None}
    if generation <= 3:
        model = OrderedDict({name: value, **named(actor, "actor", "memory_a"), **named(critic, "critic", "memory_c")})
        if generation == 3:
            model |= {f"actor_obs_normalizer.{k}": v for k, v in actor.normalizer.state_dict().items()}
            model |= {f"critic_obs_normalizer.{k}": v for k, v in critic.normalizer.state_dict().items()}
        if generation == 2:
            content["obs_norm_state_dict"] = actor.normalizer.state_dict()
            content["privileged_obs_norm_state_dict"] = critic.normalizer.state_dict()
        content["model_state_dict"] = model
    else:
        own = name if generation == 4 else f"distribution.{name}_param"
        content["actor_state_dict"] = OrderedDict(
            {
                own: value,
                **named(actor, "mlp", "rnn"),
                **{f"obs_normalizer.{k}": v for k, v in actor.normalizer.state_dict().items()},
            }
        )
        content["critic_state_dict"] = OrderedDict(
            {
                **named(critic, "mlp", "rnn"),
                **{f"obs_normalizer.{k}": v for k, v in critic.normalizer.state_dict().items()},
            }
        )
    torch.save(content, path)


def ours(policy: Policy, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    state = policy.initial_state(NUM_ENVS)
    means, stds, values = [], [], []
    for t in range(next(iter(obs.values())).shape[0]):
        out = policy({name: value[t] for name, value in obs.items()}, state, {})
        state = out.state
        means.append(out.distribution.mean)
        stds.append(out.distribution.std)
        values.append(out.value)
    return torch.stack(means), torch.stack(stds), torch.stack(values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "lstm", "gru"])
@pytest.mark.parametrize(
    ("generation", "normalized", "log"),
    [(1, False, False), (2, True, False), (2, True, True), (3, True, True), (4, True, False), (4, False, True)]
    + [(5, True, False), (5, False, True)],
)
def test_the_same_actions_from_every_generation(tmp_path, generation, normalized, log, kind):
    torch.manual_seed(generation)
    actor = Reference(NUM_OBS, NUM_ACTIONS, kind, normalized)
    critic = Reference(NUM_CRITIC_OBS, 1, kind, normalized)
    std = torch.tensor([0.3, 0.7, 1.1])
    save(tmp_path / "model_137.pt", generation, actor, critic, std, log)
    found = read_rsl_rl(tmp_path / "model_137.pt")
    assert (found.generation, found.iteration) == (generation, 137)
    assert found.optimizer is not None and found.left_out == ("infos",)
    policy = policy_from_rsl_rl(
        found,
        obs_segments={"joints": 4, "command": 3},
        critic_obs_segments={"joints": 4, "command": 3, "friction": 2},
    )
    actor_obs, critic_obs = torch.randn(6, NUM_ENVS, NUM_OBS), torch.randn(6, NUM_ENVS, NUM_CRITIC_OBS)
    obs = {}
    for names, flat in ((policy.actor_inputs, actor_obs), (policy.critic_inputs, critic_obs)):
        obs |= names.split(flat)
    with torch.no_grad():
        mean, found_std, value = ours(policy, obs)
        assert (mean - actor(actor_obs)).abs().max() <= 1e-6
        assert (value - critic(critic_obs)[..., 0]).abs().max() <= 1e-6
    assert torch.allclose(found_std, std.expand_as(found_std), atol=1e-6)


def test_a_file_of_generation_2_1_names_the_critics_normaliser_otherwise(tmp_path):
    actor, critic = Reference(4, 2, "", True), Reference(4, 1, "", True)
    save(tmp_path / "a.pt", 2, actor, critic, torch.ones(2), False)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    content["critic_obs_norm_state_dict"] = content.pop("privileged_obs_norm_state_dict")
    torch.save(content, tmp_path / "b.pt")
    mean = read_rsl_rl(tmp_path / "b.pt").critic_normalizer.mean
    assert torch.equal(mean, critic.normalizer.state_dict()["_mean"][0])


def test_a_student_is_an_actor_without_critic(tmp_path):
    student = mlp(4, 2)
    weights = {f"student.{k}": v for k, v in student.state_dict().items()}
    teacher = {f"teacher.{k}": v for k, v in mlp(4, 2).state_dict().items()}
    torch.save({"model_state_dict": {**weights, **teacher, "std": torch.ones(2)}, "iter": 3}, tmp_path / "s.pt")
    found = read_rsl_rl(tmp_path / "s.pt")
    assert found.critic == {}
    with pytest.raises(ValueError, match="no critic"):
        policy_from_rsl_rl(found)
    policy = ActorCritic(4, 4, 2, actor_hidden_dims=[16, 8], critic_hidden_dims=[3]).policy
    load_rsl_rl(policy, found, critic=False)
    x = torch.randn(5, 4)
    assert torch.allclose(policy.act({"obs": x}, {}, {})[0].mean, student(x), atol=1e-6)


def test_a_policy_of_another_shape_is_refused_and_unchanged(tmp_path):
    save(tmp_path / "a.pt", 1, Reference(4, 2, "", False), Reference(4, 1, "", False), torch.ones(2), False)
    found = read_rsl_rl(tmp_path / "a.pt")
    policy = ActorCritic(4, 4, 2, actor_hidden_dims=[16, 9], critic_hidden_dims=[16, 8]).policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    with pytest.raises(TransferError, match=r"actor_body\.model\.2\.weight"):
        load_rsl_rl(policy, found)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_a_normaliser_is_never_left_out_silently(tmp_path):
    save(tmp_path / "a.pt", 2, Reference(4, 2, "", True), Reference(4, 1, "", True), torch.ones(2), False)
    policy = ActorCritic(4, 4, 2, actor_hidden_dims=[16, 8], critic_hidden_dims=[16, 8]).policy
    with pytest.raises(ValueError, match="NormalizeStage"):
        load_rsl_rl(policy, read_rsl_rl(tmp_path / "a.pt"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"weights": torch.ones(2)}, "neither 'model_state_dict'"),
        ({"model_state_dict": [1, 2]}, "not a table of tensors"),
        ({"model_state_dict": {"critic.0.weight": torch.ones(2, 2)}}, "of an actor"),
        ({"actor_state_dict": {"cnns.image.0.weight": torch.ones(2)}}, "image networks"),
        ({"model_state_dict": {"actor.0.weight": torch.ones(2, 2)}, "obs_norm_state_dict": {"x": 1}}, "normaliser"),
        ([1, 2], "wanted a table"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, content, reason):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointCorrupt, match=reason):
        read_rsl_rl(tmp_path / "a.pt")


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="there is no file"):
        read_rsl_rl(tmp_path / "no.pt")


def test_no_flipped_or_cut_pt_file_raises_anything_else(tmp_path):
    save(tmp_path / "a.pt", 1, Reference(2, 2, "", False), Reference(2, 1, "", False), torch.ones(2), False)
    good = (tmp_path / "a.pt").read_bytes()
    program = zipfile.ZipFile(io.BytesIO(good)).getinfo("a/data.pkl")
    faults, refused = 0, 0
    for at in [*range(program.header_offset, program.header_offset + program.file_size, 23), *range(0, 60, 3)]:
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        (tmp_path / "b.pt").write_bytes(bad)
        faults += 1
        try:
            read_rsl_rl(tmp_path / "b.pt")
        except CheckpointError:
            refused += 1
    for size in range(0, len(good), len(good) // 40):
        (tmp_path / "b.pt").write_bytes(good[:size])
        faults += 1
        with pytest.raises(CheckpointCorrupt):
            read_rsl_rl(tmp_path / "b.pt")
        refused += 1
    print(f"faults: {faults}, refused: {refused}")  # the format carries no checksum: flips in names pass as other names
    assert faults > 100 and refused > faults / 2
