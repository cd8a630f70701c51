"""Every code block of the documents of rsl_rl, parkour and st_rl, run as it is written.

    document ──▶ blocks (line, code) ──▶ PLAN: line → how it is run ──▶ joined into classes and functions, executed

A block that is a method is run in a subclass of our class, which then trains; a bare `def` is compared with our
signature; pieces of one method are joined. Blocks that are no program have their reason in PLAN.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.distributions import Normal
from torch.nn import functional

import striderl.compat.st_rl as st_rl
from striderl.data import buffer_from_example
from striderl.data.named_tuples import is_namedarraytuple, namedarraytuple
from striderl.datasets import RolloutDataset
from striderl.networks import AMPDiscriminator, Conv2dHeadModel, Conv2dModel, MlpModel, Normalize, RunningMeanStd
from striderl.networks.conv import conv2d_output_shape
from striderl.policies import ActorCriticClimbMutex, ActorCriticFieldMutex, ActorCriticMutex
from striderl.policies.facade.memory import ActorCriticHiddenState, LstmHiddenState
from striderl.recording import DemonstrationSaver
from striderl.storage import StatePairBuffer
from striderl.training.rsl_rl.reporting import store_code_state

ROOT = Path(__file__).resolve().parents[2]
SEEDS = next(
    (each / "shared/reference/seeds" for each in ROOT.parents if (each / "shared/reference/seeds").is_dir()), None
)
pytestmark = pytest.mark.skipif(SEEDS is None, reason="the source documents are not beside the checkout")

T, N, OBS, CRITIC, ACT, MOTION = 4, 4, 6, 8, 2, 3
SMALL: dict[str, Any] = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
AMP = {"amp_discriminator": {"input_dim": MOTION, "style_reward_coef": 1.0, "hidden_dims": [8]}}
SEGMENTS = {
    "obs_segments": {"joints": (4,), "speed": (2,)},
    "critic_obs_segments": {"joints": (4,), "speed": (2,), "floor": (2,)},
}

# -- the documents -----------------------------------------------------------------------------------------------------


def blocks(number: str) -> dict[int, str]:
    """Return the code of each fence of a document, dedented, by the line of its fence."""
    assert SEEDS is not None
    lines = next(SEEDS.glob(f"{number}_*.txt")).read_text().splitlines()
    found: dict[int, str] = {}
    start: int | None = None
    for at, line in enumerate(lines, 1):
        if start is None and re.match(r"^\s*(?:[-*] |\d+\. )?```\s*\w+\s*$", line):
            start = at
        elif start is not None and line.strip() == "```":
            found[start] = textwrap.dedent("\n".join(lines[start : at - 1])).strip("\n")
            start = None
    return found


class Run(NamedTuple):
    """How a block is run: by a test below, as a signature of a class, as names of ours, or not, with the reason."""

    how: str
    what: Any = None


def piece(test: str) -> Run:
    return Run("run by", test)


def signature(kind: Any) -> Run:
    return Run("signature", kind)


PLAN_000 = {57: piece("test_the_transition"), 116: piece("test_the_brochure"), 152: piece("test_the_save_of_a_runner")}
_OF_PPO = (30, 102, 119, 130, 155, 177, 189, 238, 257, 281, 305, 319, 333, 360, 380)
_OF_APPO = (454, 478, 506, 517, 530, 562, 570, 584, 598, 627, 635, 653)
_OF_TPPO = (746, 765, 780, 796, 811, 835)
_OF_ESTIMATOR = (861, 874, 884, 907, 915, 928, 935, 948, 958, 968)
_OF_MODULES = (988, 1021, 1047, 1390, 1421, 1431, 1496, 1573, 1657, 1840, 1880, 1932, 1973, 1984, 2042, 2049, 2097)
_OF_RECURRENT = (1300, 1324, 1333, 1342, 1351, 1360, 1378)
_OF_RUNNER = (2122, 2148, 2161, 2169, 2187, 2193, 2205, 2215, 2226, 2238, 2248)
_OF_DAGGER = (2283, 2335, 2373, 2389, 2399, 2409, 2435)
_PRIVATE = "a private method of the original, without a body"
PLAN_004: dict[int, Run] = {
    **dict.fromkeys(_OF_PPO, piece("test_ppo")),
    65: signature(st_rl.PPO),
    429: piece("test_schedules"),
    688: piece("test_schedules"),
    **dict.fromkeys(_OF_APPO, piece("test_appo")),
    **dict.fromkeys(_OF_TPPO, piece("test_tppo")),
    709: signature(st_rl.TPPO),
    **dict.fromkeys(_OF_ESTIMATOR, piece("test_estimators")),
    **dict.fromkeys(_OF_MODULES, piece("test_modules")),
    **dict.fromkeys((1088, 1104, 1113, 1121, 1129, 1137, 1148), signature(ActorCriticFieldMutex)),
    **dict.fromkeys((1159, 1170, 1179), signature(ActorCriticClimbMutex)),
    **dict.fromkeys((1205, 1247), signature(ActorCriticMutex)),
    **dict.fromkeys((1225, 1258, 1271), piece("test_the_mutex")),
    **dict.fromkeys(_OF_RECURRENT, piece("test_a_recurrent_model")),
    1307: signature(st_rl.ActorCriticRecurrent),
    1370: signature(st_rl.Memory),
    1466: signature(AMPDiscriminator),
    1483: Run("pseudo-code", "`def __init__(..., **kwargs)` is no Python; test_modules builds AmpActorCritic"),
    **{line: Run("names", kind) for line, kind in ((1525, Conv2dModel), (1542, Conv2dHeadModel), (1691, MlpModel))},
    **{line: Run("names", kind) for line, kind in ((1745, st_rl.EmpiricalNormalization), (1763, Normalize))},
    **{line: Run("names", kind) for line, kind in ((1775, RunningMeanStd), (1796, st_rl.Normalizer))},
    **{
        line: Run("names", kind) for line, kind in ((1602, st_rl.EncoderActorCriticMixin), (1941, st_rl.EstimatorMixin))
    },
    1849: Run("names", st_rl.PrivilegeEstimatorMixin),
    **dict.fromkeys((1615, 1623, 1630, 1637, 1644), signature(st_rl.EncoderActorCriticMixin)),
    **dict.fromkeys(_OF_RUNNER, piece("test_the_loop_of_the_runner")),
    2134: signature(st_rl.AmpPolicyRunner),
    2256: piece("test_the_amp_example"),
    **dict.fromkeys(_OF_DAGGER, piece("test_dagger")),
    2297: signature(st_rl.DaggerSaver),
    **dict.fromkeys((2324, 2345, 2359, 2420), signature(st_rl.DaggerSaver)),
    **dict.fromkeys((2547, 2564, 2573, 2591, 2601, 2613, 2625, 2636, 2646, 2660), signature(st_rl.OnPolicyRunner)),
    **dict.fromkeys((2703, 2713, 2725), piece("test_two_stages")),
    **dict.fromkeys((2752, 2804), piece("test_the_ring")),
    2778: signature(StatePairBuffer),
    2958: signature(RolloutDataset),
    **dict.fromkeys((2980, 2999, 3025, 3042, 3061), Run("call", RolloutDataset)),
    2974: Run("private", "reading file names belongs to the importer of old pickles here"),
    2990: Run("private", "components are stored apart here, so nothing is assembled"),
    **dict.fromkeys((3008, 3016, 3032, 3050), Run("private", _PRIVATE)),
}


@pytest.mark.parametrize(("number", "plan"), [("000", PLAN_000), ("004", PLAN_004)], ids=["rsl_rl", "st_rl"])
def test_every_block_is_run_or_has_its_reason(number: str, plan: dict[int, Run]) -> None:
    assert set(blocks(number)) == set(plan)
    here = globals()
    for line, run in plan.items():
        if run.how == "run by":
            assert callable(here[run.what]), f"{line}: {run.what}"
        elif run.how in ("pseudo-code", "private"):
            assert isinstance(run.what, str)
        elif run.how == "names":
            assert f"class {run.what.__name__}" in blocks(number)[line]


# -- signatures --------------------------------------------------------------------------------------------------------


def functions(code: str) -> list[ast.FunctionDef]:
    """Return the functions of a block whose bodies may be missing."""
    code = re.sub(r"\(\s*\.\.\.,", "(self,", code).replace(", ...)", ")")
    code = re.sub(r"= \.\.\.$|with open\(\.\.\..*$", "= None", code, flags=re.MULTILINE)
    for attempt in (code, f"{code}: ...", f"{code}:\n    ...", f"{code}\n    ...", f"{code}\n        ..."):
        try:
            tree = ast.parse(attempt)
        except SyntaxError:
            continue
        return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    heads = re.findall(r"def \w+\([^)]*\)", code)
    return [node for head in heads for node in ast.parse(f"{head}: ...").body if isinstance(node, ast.FunctionDef)]


def same(described: Any, ours: Any) -> bool:
    """Compare defaults: an empty dict may be None, a list a tuple."""
    if described == {} or described is None:
        return ours is None or ours == {}
    return tuple(described) == tuple(ours) if isinstance(described, list) else bool(described == ours)


SIGNATURES = [line for line, run in PLAN_004.items() if run.how == "signature"]


@pytest.mark.parametrize("line", SIGNATURES)
def test_a_described_signature_is_ours(line: int) -> None:
    kind = PLAN_004[line].what
    for function in functions(blocks("004")[line]):
        ours = inspect.signature(getattr(kind, function.name))
        given = {}
        for base in kind.__mro__:  # names that a constructor hands on to the next class
            if function.name in vars(base) and callable(vars(base)[function.name]):
                given = {**inspect.signature(vars(base)[function.name]).parameters, **given}
        arguments = function.args.args
        defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
        for argument, default in zip(arguments, defaults):
            name = {"extra": "kwargs"}.get(argument.arg, argument.arg)
            assert name in given, f"{kind.__name__}.{function.name} has no {name}: {ours}"
            if default is not None:
                value = {} if ast.unparse(default) == "dict()" else ast.literal_eval(default)
                found = given[name].default
                if (function.name, name) in DIFFERENT:
                    continue
                assert same(value, found), f"{kind.__name__}.{function.name}({name}={value!r}), ours {found!r}"


DIFFERENT = {
    ("__init__", "device"): "the device of a dataset is the CPU by default, not 'cuda'",
    ("__init__", "starting_frame_range"): "a list in the document; a tuple or None here",
    ("__init__", "cmd_vel_mapping"): "an empty dict in the document",
}


@pytest.mark.parametrize("line", [line for line, run in PLAN_004.items() if run.how == "call"])
def test_a_described_call_is_ours(line: int) -> None:
    call = ast.parse(blocks("004")[line]).body[0].value  # type: ignore[attr-defined]
    found = inspect.signature(getattr(PLAN_004[line].what, call.func.id)).parameters
    names = [each.id for each in call.args] + [each.arg for each in call.keywords]
    assert set(names) <= set(found)


# -- classes out of blocks ---------------------------------------------------------------------------------------------


def words() -> dict[str, Any]:
    """Return what the imports of the documents give, out of this library."""
    ours = {name: getattr(st_rl, name) for name in dir(st_rl)}
    return {
        **ours,
        "torch": torch,
        "nn": nn,
        "F": functional,
        "optim": optim,
        "np": np,
        "json": json,
        "deque": deque,
        "defaultdict": defaultdict,
        "OrderedDict": OrderedDict,
        "Normal": Normal,
        "modules": st_rl,
        "namedarraytuple": namedarraytuple,
        "is_namedarraytuple": is_namedarraytuple,
        "ActorCriticHiddenState": ActorCriticHiddenState,
        "LstmHiddenState": LstmHiddenState,
        "conv2d_output_shape": conv2d_output_shape,
        "store_code_state": store_code_state,
        "DemonstrationSaver": DemonstrationSaver,
    }


def imports(code: str) -> str:
    """Change the first word of a block's imports; its `VecEnv(cfg)` is an env of the test's."""
    code = re.sub(r"^(from|import) st_rl\b", r"\1 striderl.compat.st_rl", code, flags=re.MULTILINE)
    return code.replace("from striderl.compat.st_rl.env import VecEnv\n", "")


def class_of(head: str, *bodies: str, **more: Any) -> Any:
    """Execute `class …:` with blocks as its body and return the class."""
    space = {**words(), **more}
    exec(f"{head}\n" + textwrap.indent("\n\n".join(bodies), "    "), space)
    return space[re.findall(r"class (\w+)", head)[0]]


def under(head: str, *bodies: str) -> str:
    """Return a function of a block that goes on in other blocks."""
    return head + "\n" + "\n".join(textwrap.indent(textwrap.dedent(body), "    ") for body in bodies)


def infos_of(dones: Tensor) -> dict[str, Any]:
    motions = {"observations": {"ref_obs": torch.randn(N, 1, MOTION)}, "ref_motion": torch.randn(N, MOTION) + 1.0}
    return {"time_outs": dones, **motions, "log": {}}


def loop(alg: Any, iterations: int = 2) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run the documents' loop."""
    if alg.storage is None:
        alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    alg.train_mode()
    torch.manual_seed(1)
    for it in range(iterations):
        with torch.inference_mode():
            for at in range(T):
                obs, critic_obs = alg.obs_normalizer(torch.randn(N, OBS)), torch.randn(N, CRITIC)
                alg.act(obs, alg.critic_obs_normalizer(critic_obs))
                dones = torch.zeros(N)
                dones[at % N] = 1
                alg.process_env_step(torch.randn(N), dones, infos_of(dones))
            alg.compute_returns(alg.critic_obs_normalizer(torch.randn(N, CRITIC)))
        losses, stats = alg.update(it)
    return losses, stats


def model(kind: Any = st_rl.ActorCritic, **more: Any) -> Any:
    torch.manual_seed(0)
    return kind(OBS, CRITIC, ACT, **SMALL, **({"rnn_hidden_size": 5} if kind.is_recurrent else {}), **more)


# -- the first document ------------------------------------------------------------------------------------------------


def test_the_transition() -> None:
    own = class_of("class Own(RolloutStorage):", blocks("000")[57])
    alg = st_rl.PPO(model(), num_mini_batches=2)
    alg.init_storage(N, T, [OBS], [CRITIC], [ACT])
    alg.storage, alg.transition = own(N, T, [OBS], [CRITIC], [ACT]), own.Transition()
    assert torch.isfinite(loop(alg)[0]["total_loss"])
    alg.transition.clear()
    assert vars(alg.transition) == dict.fromkeys(vars(own.Transition()))


def test_the_brochure() -> None:
    head = "def forward(self, input):"
    body = under(head, blocks("000")[116], "return out")
    kind = class_of("class Own(nn.Module):", body)
    own = kind()
    own.rnn, own.hidden_states = nn.LSTM(OBS, 5), None
    assert own.forward(torch.randn(N, OBS)).shape == (N, 5)
    assert isinstance(own.hidden_states, LstmHiddenState) and own.hidden_states.hidden.shape == (1, N, 5)
    assert own.forward(torch.randn(N, OBS)).shape == (N, 5)
    assert buffer_from_example(torch.zeros(3), (T, N)).shape == (T, N, 3)


def test_the_save_of_a_runner(tmp_path: Path) -> None:
    kind = class_of("class Own(OnPolicyRunner):", blocks("000")[152])
    runner = kind(MotionEnv(), amp_config())
    runner.learn(1)
    runner.save(tmp_path / "x.pt", infos={"note": 1})
    again = kind(MotionEnv(), amp_config())
    assert again.load(tmp_path / "x.pt") == {"note": 1} and again.current_learning_iteration == 1


# -- algorithms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recurrent", [False, True])
def test_ppo(recurrent: bool, tmp_path: Path) -> None:
    """The class of the document, method by method, learns what ours learns, and loads what ours saved."""
    found = blocks("004")
    exec(imports(found[30]), {})
    assert found[281] == found[257], "the document prints the block of the KL twice"
    losses = under(found[238], found[257], found[305], found[319], found[333])
    # `raise (f"…")` of the identity's branch is no exception: it is what Python makes of it, a TypeError
    # compute_returns of the document advances a memory by valuing the last observation, which ours does not
    lines = [line for line in _OF_PPO[1:7] if not (recurrent and line == 177)]
    kind = class_of("class Own(PPO):", *(found[line] for line in lines), losses, found[360], found[380])
    results = []
    for each in (kind, st_rl.PPO):
        policy = model(st_rl.ActorCriticRecurrent if recurrent else st_rl.ActorCritic)
        alg = each(policy, 2, 2, schedule="adaptive", empirical_normalization=True, entropy_coef=0.01)
        alg.init_obs_norm(OBS, CRITIC)
        results.append((alg, *loop(alg)))
    theirs, ours = results
    for name, value in theirs[0].actor_critic.state_dict().items():
        torch.testing.assert_close(value, ours[0].actor_critic.state_dict()[name], atol=1e-6, rtol=1e-5)
    assert theirs[0].learning_rate == pytest.approx(ours[0].learning_rate) and set(theirs[1]) == set(ours[1])
    torch.save(ours[0].state_dict(), tmp_path / "ours.pt")
    theirs[0].load_state_dict(torch.load(tmp_path / "ours.pt", weights_only=True))
    ours[0].load_state_dict(theirs[0].state_dict())
    with pytest.raises(TypeError, match="exceptions must derive"):
        kind(model()).init_obs_norm(OBS, CRITIC)


def test_schedules() -> None:
    for line in (429, 688):
        space = words()
        exec(blocks("004")[line], space)
        for option in ("linear", "exp", "tanh"):
            theirs, ours = space["GET_PROB_FUNC"](option, 10.0), st_rl.GET_PROB_FUNC(option, 10.0)
            for x in (0.0, 3.0, 25.0):
                assert ours(x) == pytest.approx(float(theirs(torch.tensor(x))), abs=1e-6)


def test_appo() -> None:
    """The mixin of the document in front of our PPO: its losses are learned, also the discriminator's."""
    found = blocks("004")
    exec(imports(textwrap.dedent(found[454].replace(" import torch\n", "import torch\n", 1))), {})
    losses = under(found[562], *(found[line] for line in (570, 584, 598, 627)))
    body = "\n\n".join(found[line] for line in (506, 517, 530))
    space = words()
    exec(found[478] + "\n" + textwrap.indent(f"\n{body}\n\n{losses}", "    "), space)
    space["AmpRolloutStorage"], mixin = st_rl.AmpRolloutStorage, space["APPOAlgoMixin"]
    exec(found[635], space)
    alg = space["APPO"](model(st_rl.AmpActorCritic, **AMP), 2, 2, amp_obs_dim=MOTION, mimic_loss_coef=0.1)
    before = [weight.clone() for weight in alg.actor_critic.discriminator.parameters()]
    theirs, _ = loop(alg)
    assert any(not torch.equal(old, new) for old, new in zip(before, alg.actor_critic.discriminator.parameters()))
    own = st_rl.APPO(model(st_rl.AmpActorCritic, **AMP), 2, 2, amp_obs_dim=MOTION, mimic_loss_coef=0.1)
    own.dagger_loss_coef = alg.dagger_loss_coef = 0.5
    theirs, ours = loop(alg)[0], loop(own)[0]
    theirs["discriminator_grad_pen_loss"] = theirs.pop("discriminator_grad_len_loss")  # ours is spelt right
    assert set(theirs) == set(ours) >= {"dagger_loss", "mimic_loss", "discriminator_grad_pen_loss"}
    exec(found[653], space)
    assert issubclass(space["ATPPO"], mixin) and issubclass(space["ATPPO"], st_rl.TPPO)


def test_tppo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Teacher, storage, act, step and losses of the document in a subclass of our TPPO."""
    found = blocks("004")
    teacher = model(st_rl.ActorCritic)
    torch.save(st_rl.PPO(teacher).state_dict(), tmp_path / "teacher.pt")
    sizes = {"num_actor_obs": OBS, "num_critic_obs": CRITIC, "num_actions": ACT, **SMALL}

    def build(path: Any) -> Any:
        settings = {"class_name": "ActorCritic", "teacher_ac_path": path, **sizes}
        # the constructor of the document is given the whole dict, whose first two keys are no sizes
        code = found[746].replace("(**teacher_policy)", "(**{k: v for k, v in teacher_policy.items() if k in sizes})")
        self = SimpleNamespace(device="cpu")
        exec(code, {**words(), "self": self, "teacher_policy": settings, "sizes": sizes})
        return self.teacher_actor_critic

    loaded = build(tmp_path / "teacher.pt")
    assert torch.equal(loaded.actor[0].weight, teacher.actor[0].weight)
    build(None)
    assert "Make sure you have a pretrained teacher" in capsys.readouterr().out
    losses = under(found[811], found[835].replace("...", "dist_loss = torch.norm(latent - target_latent, dim=-1)"))
    losses += '\n    losses["distillation_loss"] = dist_loss.mean()\n    return losses, inter_vars, stats'
    kind = class_of("class Own(TPPO):", *(found[line] for line in (765, 780, 796)), losses)
    alg = kind(model(), 2, 2, teacher_policy=loaded, label_action_with_critic_obs=False, teacher_act_prob="exp")
    assert "distillation_loss" in loop(alg)[0]


def test_estimators() -> None:
    found = blocks("004")
    space = words()
    exec(imports(found[861]), space)
    losses = under(found[907], *(found[line] for line in (915, 928, 935, 948)))
    exec(found[874] + "\n" + textwrap.indent(f"{found[884]}\n\n{losses}", "    "), space)
    exec(found[958], space)
    exec(found[968], space)
    settings = {
        "estimator_obs_components": ["joints"],
        "estimator_target_components": ["speed"],
        "estimator_kwargs": {"hidden_sizes": [8]},
        **SEGMENTS,
    }
    for policy in (st_rl.StateAc, st_rl.StateAcRecurrent):
        theirs, ours = (
            loop(kind(model(policy, **settings), 2, 2))[0]["estimator_loss"]
            for kind in (space["EstimatorPPO"], st_rl.EstimatorPPO)
        )
        torch.testing.assert_close(theirs, ours)
    assert (
        "distillation_loss"
        in loop(
            space["EstimatorTPPO"](
                model(st_rl.StateAc, **settings), teacher_policy=model(), label_action_with_critic_obs=False
            )
        )[0]
    )


# -- modules -----------------------------------------------------------------------------------------------------------


def test_modules(capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks("004")
    space = words()
    for line in (1021, 1047, 988):
        exec(found[line], space)
    small = space["ActorCritic"](OBS, ACT)
    actions, log_prob = small.act(torch.randn(N, OBS))
    again, entropy, values = small.evaluate_actions(torch.randn(N, OBS), actions)
    assert log_prob.shape == again.shape == entropy.shape == (N,) and values.shape == (N, 1)
    space = words()
    for line in (1390, 1840, 1932, 1573, 1496, 1421, 1431, 1657, 1880, 1973, 1984):
        exec(found[line], space)
    assert space["ActorCriticHiddenState"](1, 2).critic == 2 and space["LstmHiddenState"](1, 2).cell == 2
    assert space["AdaptorActorHiddenState"]._fields == ("adaptor", "actor")
    assert space["EstimatorActorHiddenState"]._fields == ("estimator", "actor")
    encoder = {
        **SEGMENTS,
        "encoder_component_names": ["joints"],
        "encoder_kwargs": {"hidden_sizes": [8]},
        "encoder_output_size": 5,
        "critic_encoder_component_names": "shared",
    }
    estimator = {
        **SEGMENTS,
        "estimator_obs_components": ["joints"],
        "estimator_target_components": ["speed"],
        "estimator_kwargs": {"hidden_sizes": [8]},
    }
    adaptor = {
        **estimator,
        "adaptor_obs_components": ["joints"],
        "adaptor_target_components": ["floor"],
        "adaptor_kwargs": {"hidden_sizes": [8]},
    }
    kinds = {
        "AmpActorCritic": AMP,
        "AmpActorCriticRecurrent": AMP,
        "EncoderActorCritic": encoder,
        "EncoderActorCriticRecurrent": encoder,
        "EncoderAmpActorCriticRecurrent": {**encoder, **AMP},
        "StateAc": estimator,
        "StateAcRecurrent": estimator,
        "EncoderStateAc": {**encoder, **estimator},
        "EncoderStateAcRecurrent": {**encoder, **estimator},
        "PrivilegeStateAcRecurrent": adaptor,
    }
    for name, settings in kinds.items():
        built = model(space[name], **settings)
        assert built.act(torch.randn(N, OBS)).shape == (N, ACT), name
        assert built.evaluate(torch.randn(N, CRITIC)).shape == (N, 1), name
    exec("class Own(DeterministicPolicyMixin, ActorCritic): pass", space)
    own, obs = model(space["Own"]), torch.randn(N, OBS)
    assert torch.equal(own.act(obs), own.act_inference(obs))
    for line in (2042, 2049):
        exec(found[line], space)
    assert isinstance(space["activation"], nn.ReLU) and "32 32" in capsys.readouterr().out
    space["obs_segments"] = {"proprioception": (512 - 15 * 16,), "forward_depth": (1, 15, 16)}
    space["observations"] = torch.randn(N, 512)
    exec(found[2097], space)
    assert space["actions"].shape == (N, 12)


def test_a_recurrent_model() -> None:
    """The methods of the document around our Memory act as our class does."""
    found = blocks("004")
    constructor = textwrap.dedent("""
        def __init__(self, num_actor_obs, num_critic_obs, num_actions, rnn_hidden_size=5, **kwargs):
            super().__init__(rnn_hidden_size, rnn_hidden_size, num_actions, **kwargs)
            self.memory_a = Memory(num_actor_obs, "lstm", 1, rnn_hidden_size)
            self.memory_c = Memory(num_critic_obs, "lstm", 1, rnn_hidden_size)
    """)
    lines = (1324, 1333, 1342, 1351, 1360)
    kind = class_of(found[1300], constructor, *(found[line] for line in lines))
    theirs, ours = model(kind), model(st_rl.ActorCriticRecurrent)
    theirs.load_state_dict(ours.state_dict())
    torch.manual_seed(4)
    for _ in range(3):
        obs, critic_obs = torch.randn(N, OBS), torch.randn(N, CRITIC)
        torch.testing.assert_close(theirs.act_inference(obs), ours.act_inference(obs))
        torch.testing.assert_close(theirs.evaluate(critic_obs), ours.evaluate(critic_obs))
    dones = torch.tensor([1.0, 0, 0, 0])
    theirs.reset(dones)
    assert float(theirs.get_hidden_states().actor.hidden[:, 0].detach().abs().sum()) == 0.0
    memory = class_of(
        "class Own(nn.Module):",
        under("def __init__(self, input_size, type, num_layers, hidden_size):", "super().__init__()", found[1378]),
    )
    assert isinstance(memory(OBS, "gru", 1, 5).rnn, nn.GRU)


def test_the_mutex(tmp_path: Path) -> None:
    found = blocks("004")
    for number, scale in enumerate((0.5, [0.25, 0.25])):
        folder = tmp_path / str(number)
        folder.mkdir()
        torch.save(st_rl.PPO(model()).state_dict(), folder / "model_1.pt")
        content = {"policy": SMALL, "runner": {"policy_class_name": "ActorCritic"}, "control": {"action_scale": scale}}
        (folder / "config.json").write_text(json.dumps(content))
    paths = [str(tmp_path / "0"), str(tmp_path / "1")]
    owner = nn.Module()
    owner.is_recurrent = False  # type: ignore[assignment]
    space = {
        **words(),
        "self": owner,
        "sub_policy_paths": paths,
        "sub_policy_class_name": "ActorCritic",
        "num_actor_obs": OBS,
        "num_critic_obs": CRITIC,
        "num_actions": ACT,
        **SEGMENTS,
        "osp": __import__("os").path,
    }
    exec(found[1225] + "\n" + textwrap.indent(found[1271], "    "), space)
    assert len(owner.submodules) == 2 and owner.subpolicy_action_scale_1.tolist() == [0.25, 0.25]
    settings = {"last_action_entries": (0, 2), "last_action_component": "joints"}
    mutex = ActorCriticMutex(OBS, CRITIC, ACT, "ActorCritic", paths, *SEGMENTS.values(), 0.5, **settings)
    mutex.reset(torch.ones(N))
    with pytest.raises((ValueError, TypeError), match="nothing says which policy acts"):
        mutex.act_inference(torch.randn(N, OBS))
    # a model that refuses to act is refused at once: agents and savers run its policy
    with pytest.raises(TypeError, match="would have no effect"):
        class_of("class Own(ActorCriticMutex):", found[1258], ActorCriticMutex=ActorCriticMutex)


# -- runners -----------------------------------------------------------------------------------------------------------


class MotionEnv:
    """An env of st_rl's kind."""

    num_envs, num_actions, num_obs, device, max_episode_length = N, ACT, OBS, "cpu", 5
    obs_segments, critic_obs_segments = SEGMENTS["obs_segments"], SEGMENTS["critic_obs_segments"]
    tracking_error, CoT = torch.tensor([3.0, 4.0, 3.0, 4.0]), torch.ones(N)

    def __init__(self, cfg: Any = None) -> None:
        self.episode_length_buf = torch.zeros(N, dtype=torch.long)
        self.steps = 0

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def reset(self) -> Any:
        self.episode_length_buf.zero_()
        return self.get_observations()

    def get_observations(self) -> Any:
        return torch.randn(N, OBS), {
            "observations": {"critic": torch.randn(N, CRITIC), "ref_obs": torch.randn(N, MOTION)}
        }

    def step(self, actions: Tensor) -> Any:
        self.steps += 1
        self.episode_length_buf += 1
        dones = self.episode_length_buf >= 5
        self.episode_length_buf[dones] = 0
        obs, extras = self.get_observations()
        infos = {**extras, "ref_motion": torch.randn(N, MOTION), "time_outs": dones, "log": {"up": 1.0}}
        return obs, torch.ones(N), dones, {**infos, "episode": {"length": torch.tensor(5.0)}}


def amp_config() -> dict[str, Any]:
    return {
        "num_steps_per_env": T,
        "save_interval": 2,
        "logger": "none",
        "policy": {"class_name": "AmpActorCritic", **SMALL, **AMP},
        "algorithm": {"class_name": "APPO", "num_learning_epochs": 2, "amp_obs_dim": MOTION},
    }


def test_the_loop_of_the_runner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pieces of `learn`, joined, drive our runner's methods and our algorithm."""
    found = blocks("004")
    buffers = found[2169].replace(", ...)", ")")  # the document leaves the dtype and the device out
    inside = [
        found[2193],
        "collection_time = learn_time = 0.1",
        found[2205],
        "self.current_learning_iteration += 1",
        found[2215],
        found[2226].replace("self.save(...)", "self.save(os.path.join(self.log_dir, 'x.pt'))"),
        found[2238],
    ]
    counters = "start_iter = self.current_learning_iteration\ntot_iter = start_iter + num_learning_iterations"
    body = under(
        blocks("004")[2134], found[2148], found[2161], buffers, counters, under(found[2187], *inside), found[2248]
    )
    kind = class_of("class Own(OnPolicyRunner):", body, os=__import__("os"))
    runner = kind(MotionEnv(), amp_config(), tmp_path)
    runner.learn(2)
    assert runner.env.steps == 2 * T and (tmp_path / "model_2.pt").is_file() and (tmp_path / "x.pt").is_file()
    printed = capsys.readouterr().out
    assert "Learning iteration 2/2" in printed and "Loss/total_loss:" in printed and "Perf/memory:" in printed
    shell = class_of(found[2122].partition("\n")[0], found[2122].partition("\n")[2])
    assert shell(MotionEnv(), amp_config()).learn(1) == (pytest.approx(12.5**0.5), 1.0)


def test_the_amp_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = imports(blocks("004")[2256]).replace('"cuda:0"', '"cpu"').replace("10000", "2")
    code = code.replace('"./logs"', repr(str(tmp_path)))
    exec(code, {"cfg": amp_config(), "VecEnv": MotionEnv})
    assert "Final metrics: 3.5" in capsys.readouterr().out


def test_dagger(tmp_path: Path) -> None:
    """The example of the document, teacher left out: it is the one of the student's own config."""
    found = blocks("004")
    teacher = {"num_actor_obs": CRITIC, "num_critic_obs": CRITIC, "num_actions": ACT, **SMALL}
    torch.manual_seed(0)
    labels = st_rl.ActorCritic(**teacher)
    torch.save(st_rl.PPO(labels).state_dict(), tmp_path / "teacher.pt")
    student = tmp_path / "student_policy"
    student.mkdir()
    torch.save({**st_rl.PPO(model()).state_dict(), "iter": 1}, student / "model_1.pt")
    policy = {"class_name": "ActorCritic", "teacher_ac_path": str(tmp_path / "teacher.pt"), **teacher}
    content = {"policy": SMALL, "runner": {"policy_class_name": "ActorCritic"}, "algorithm": {"teacher_policy": policy}}
    (student / "config.json").write_text(json.dumps(content))
    code = imports(found[2435]).replace("./dagger_demos", str(tmp_path / "demos"))
    code = code.replace("./student_policy", str(student)).replace("range(1000)", "range(6)")
    code = code.replace("log_to_tensorboard=True", "log_to_tensorboard=False, use_critic_obs=True")
    space = {"my_env": MotionEnv()}
    exec(code, space)
    saver: Any = space["saver"]
    assert saver.episode_means["up"] == 1.0 and saver.training_policy_iteration == 1
    assert torch.as_tensor(space["teacher_actions"]).shape == (N, ACT)
    saver.close()
    own = class_of(found[2283].partition("\n")[0], found[2283].partition("\n")[2], DemonstrationSaver=st_rl.DaggerSaver)
    methods = [found[line] for line in (2335, 2389, 2399, 2409)]
    assert callable(class_of("class Own(DaggerSaver):", *methods, found[2373]).get_transition) and own.__doc__
    calls: list[str] = []
    adding = f"{methods[1]}\n    calls.append('add')\n    return super().add_transition(step_i, infos)"
    kind = class_of("class Own(DaggerSaver):", adding, methods[3], calls=calls)
    saver = kind(
        env=MotionEnv(), save_dir=tmp_path / "own", training_policy_logdir=student, min_timesteps=20, min_episodes=4
    )
    saver.collect_and_save()
    assert calls, "an override of add_transition is called"


def test_two_stages(tmp_path: Path) -> None:
    found = blocks("004")
    DemonstrationSaver(MotionEnv(), RunsOnes(), tmp_path, 5, 20, 4).collect_and_save()
    cfg = {
        "num_steps_per_env": T,
        "policy": {"class_name": "ActorCritic", **SMALL},
        "algorithm": {"class_name": "TPPO", "teacher_policy": st_rl.ActorCritic(CRITIC, CRITIC, ACT)},
        "pretrain_iterations": 1,
        "pretrain_dataset": {"data_dir": tmp_path, "dataset_loops": 0},
    }
    switch = under("if not self.pretraining:", found[2725])
    result = "return obs, critic_obs, transition.reward, transition.done, infos"
    head = "def rollout_step(self, obs, critic_obs, **kwargs):"
    kind = class_of("class Own(TwoStageRunner):", under(head, switch, found[2703], found[2713], result))
    runner = kind(MotionEnv(), cfg)
    runner.learn(1)
    assert runner.env.steps == 0 and torch.equal(runner.alg.storage.actions, torch.ones(T, N, ACT))
    runner.learn(1)
    assert runner.env.steps == T


class RunsOnes:
    def act(self, obs: Tensor) -> Tensor:
        return torch.ones(len(obs), ACT)

    act_inference = act

    def reset(self, dones: Tensor) -> None: ...


def test_the_ring() -> None:
    found = blocks("004")
    kind = class_of("class Own:", found[2752], found[2804])
    ring = kind(3, 8, "cpu")
    ring.num_samples = 8
    ours = StatePairBuffer(3, 8, "cpu")
    ours.insert(torch.zeros(8, 3), torch.zeros(8, 3))
    for theirs, own in zip(ring.feed_forward_generator(2, 4), ours.feed_forward_generator(2, 4), strict=True):
        assert [each.shape for each in theirs] == [each.shape for each in own]
