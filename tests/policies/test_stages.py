"""The small stages and the pipeline: hand-worked numbers, nothing kept, nothing changed, mistakes found when built."""

from __future__ import annotations

import pytest
import torch

from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.networks.mlp import MlpModel
from striderl.policies.encode import Encode
from striderl.policies.stage import Pipeline, StageInput, StageRecipe, inner, only, outer
from striderl.policies.stages import NormalizeObs, Override, Remember, module_key

SPEC = ObsSpec(
    {
        "joints": ComponentSpec(shape=(3,)),
        "height": ComponentSpec(shape=()),
        "image": ComponentSpec(shape=(1, 4, 4), dtype="uint8"),
    }
)


def observation(*lead: int) -> dict[str, torch.Tensor]:
    return {
        "joints": torch.randn(*lead, 3),
        "height": torch.randn(*lead),
        "image": torch.randint(0, 256, (*lead, 1, 4, 4), dtype=torch.uint8),
    }


def built(recipe: StageRecipe, spec: ObsSpec = SPEC):
    torch.manual_seed(0)
    return recipe.build(spec, spec)


def stage_input(obs, state=None, **more):
    return StageInput(obs, state or {}, {}, **more)


# -- NormalizeObs ------------------------------------------------------------------------------------------------------


def test_normalising_changes_nothing_until_it_has_absorbed():
    stage = built(NormalizeObs(eps=0.0))
    obs = observation(5)
    before = stage(stage_input(obs)).obs
    assert torch.equal(before["joints"], obs["joints"])
    assert before["image"] is obs["image"], "images are left alone"
    assert torch.equal(stage(stage_input(obs)).obs["joints"], before["joints"]), "reading is not learning"


def test_normalising_by_hand():
    # heights 1 and 3: mean 2, std 1, so 5 becomes (5 - 2) / 1 = 3
    stage = built(NormalizeObs(components=("height",), eps=0.0))
    stage.update_normalization({"height": torch.tensor([1.0, 3.0])})
    out = stage(stage_input({"height": torch.tensor([5.0])})).obs
    assert out["height"].item() == pytest.approx(3.0)


def test_invalid_samples_are_not_absorbed():
    stage = built(NormalizeObs(components=("height",), eps=0.0))
    valid = torch.tensor([True, True, False])
    stage.update_normalization({"height": torch.tensor([1.0, 3.0, 100.0])}, valid)
    assert stage(stage_input({"height": torch.tensor([5.0])})).obs["height"].item() == pytest.approx(3.0)


def test_until_stops_the_learning():
    stage = built(NormalizeObs(components=("height",), eps=0.0, until=2))
    stage.update_normalization({"height": torch.tensor([1.0, 3.0])})
    stage.update_normalization({"height": torch.tensor([100.0, 300.0])})
    assert stage(stage_input({"height": torch.tensor([5.0])})).obs["height"].item() == pytest.approx(3.0)


def test_unknown_component_to_normalise_is_named():
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        built(NormalizeObs(components=("joint",)))


@pytest.mark.parametrize("recipes", [(Override(component="joints", values=(0.0, 0.0, 0.0)), NormalizeObs())])
def test_a_normaliser_that_would_not_see_raw_data_is_refused(recipes):
    with pytest.raises(ValueError, match="must be the first stage; put it first in the trunk"):
        Pipeline(SPEC, recipes)
    with pytest.raises(ValueError, match="must be the first stage"):
        Pipeline(SPEC, (NormalizeObs(),), raw=False)


# -- Encode ------------------------------------------------------------------------------------------------------------


def test_a_latent_stands_where_its_component_stood():
    settings = ({"hidden_sizes": 5}, {"channels": [2], "kernel_sizes": [3], "strides": [1]})
    stage = built(
        Encode(components=("joints", "image"), model=("MlpModel", "Conv2dHeadModel"), settings=settings, output_size=7)
    )
    obs = observation(2, 6)
    passed = stage(stage_input(obs))
    assert stage.output_spec.names == SPEC.names
    assert {name: part.shape for name, part in stage.output_spec.items()} == {
        "joints": (7,),
        "height": (),
        "image": (7,),
    }
    assert passed.obs["joints"].shape == passed.obs["image"].shape == (2, 6, 7)
    assert torch.equal(passed.obs["height"], obs["height"])
    assert torch.equal(passed.aux["latent/image"], passed.obs["image"])
    assert obs["image"].dtype == torch.uint8, "what came in is not changed"
    assert (passed.obs["joints"] >= 0).all(), "latents end in the nonlinearity, here ReLU"


def test_bytes_are_scaled_on_use():
    stage = built(Encode(components=("image",), model="Conv2dHeadModel", settings=CONV, output_size=3))
    image = observation(2)["image"]
    as_float = image.float() / 255.0
    assert torch.allclose(stage.latent("image", {"image": image}), stage.latent("image", {"image": as_float}))


CONV = {"channels": [2], "kernel_sizes": [3], "strides": [1]}


def test_scalars_and_images_can_go_through_an_mlp():
    stage = built(Encode(components=("height", "image"), output_size=3))
    passed = stage(stage_input(observation(4)))
    assert passed.obs["height"].shape == passed.obs["image"].shape == (4, 3)


def test_a_copy_is_encoded_by_the_same_weights():
    spec = ObsSpec({"scan": ComponentSpec(shape=(3,)), "critic/scan": ComponentSpec(shape=(3,), group="critic")})
    stage = built(Encode(components=("scan",), copies=(("scan", "critic/scan"),), output_size=2), spec)
    x = torch.randn(5, 3)
    passed = stage(stage_input({"scan": x, "critic/scan": x}))
    assert torch.equal(passed.obs["scan"], passed.obs["critic/scan"])
    assert len(stage.encoders) == 1
    assert stage(stage_input({"scan": x})).obs["scan"].shape == (5, 2), "the actor alone does without the critic's copy"


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        (Encode(components=()), ValueError, "wants the names of the components"),
        (Encode(components=("joint",)), KeyError, "Did you mean 'joints'"),
        (Encode(components=("joints",), model="MlpModle"), ValueError, "Did you mean 'MlpModel'"),
        (Encode(components=("joints",), model="Conv2dHeadModel", settings=CONV), ValueError, "use 'MlpModel'"),
        (Encode(components=("joints",), settings={"hiden_sizes": [3]}), TypeError, "Did you mean 'hidden_sizes'"),
        (Encode(components=("image",), model="Conv2dHeadModel"), TypeError, "channels.*set it in the encoder"),
        (Encode(components=("joints",), model=("MlpModel",) * 2), ValueError, "one for all, or one per component"),
        (Encode(components=("joints",), copies=(("joints", "height"),)), ValueError, "encoder of its own"),
        (Encode(components=("joints",), copies=(("height", "joints"),)), ValueError, "no component 'height'"),
    ],
)
def test_wrong_encoders_are_refused_when_built(recipe, error, message):
    with pytest.raises(error, match=message):
        built(recipe)


def test_asking_for_the_latent_of_something_else_names_what_is_encoded():
    with pytest.raises(KeyError, match=r"no encoded component 'height'.*'joints'"):
        built(Encode(components=("joints",))).latent("height", observation(2))


@pytest.mark.parametrize("name", ["values", "type", "a.b", "group/part", "pop"])
def test_any_component_name_can_be_a_module_name(name):
    spec = ObsSpec({name: ComponentSpec(shape=(2,))})
    for recipe in (Encode(components=(name,)), NormalizeObs()):
        assert built(recipe, spec)(stage_input({name: torch.randn(3, 2)})).obs[name].shape[0] == 3
    assert "." not in module_key(name)


# -- Remember, Override ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_remember_reads_everything_and_keeps_nothing(kind):
    stage = built(Remember(type=kind, hidden_size=6, num_layers=2))
    state = {name: torch.zeros(4, *spec.shape) for name, spec in stage.state_spec().items()}
    assert set(state) == ({"hidden", "cell"} if kind == "lstm" else {"hidden"})
    obs = observation(4)
    first, again = stage(stage_input(obs, state)), stage(stage_input(obs, state))
    assert first.obs.keys() == {"memory"} and first.obs["memory"].shape == (4, 6)
    assert torch.equal(first.obs["memory"], again.obs["memory"])
    assert not torch.equal(first.state["hidden"], state["hidden"]) and (state["hidden"] == 0).all()
    later = stage(stage_input(obs, first.state))
    assert not torch.allclose(later.obs["memory"], first.obs["memory"]), "the state matters"


def test_remember_refuses_an_unknown_type():
    with pytest.raises(ValueError, match="Did you mean 'lstm'"):
        built(Remember(type="lstmm"))


def test_override_writes_into_a_copy():
    stage = built(Override(component="joints", values=(9.0,), entries=(1,)))
    obs = observation(2)
    before = obs["joints"].clone()
    out = stage(stage_input(obs)).obs["joints"]
    assert out[:, 1].tolist() == [9.0, 9.0]
    assert torch.equal(out[:, [0, 2]], before[:, [0, 2]]) and torch.equal(obs["joints"], before)
    whole = built(Override(component="joints", values=(1.0, 2.0, 3.0)))(stage_input(obs)).obs["joints"]
    assert whole.tolist() == [[1.0, 2.0, 3.0]] * 2


@pytest.mark.parametrize(
    ("values", "entries"), [((1.0, 2.0), ()), ((1.0,), (3,)), ((1.0,), (-1,)), ((1.0, 2.0), (0, 0))]
)
def test_override_wants_one_value_per_entry(values, entries):
    with pytest.raises(ValueError, match="one value per entry, and entries from 0 to 2"):
        built(Override(component="joints", values=values, entries=entries))


# -- Pipeline ----------------------------------------------------------------------------------------------------------


def test_a_pipeline_hands_components_on_and_keeps_states_apart():
    pipeline = Pipeline(SPEC, (Encode(components=("image",), output_size=4), Remember(hidden_size=3, type="gru")))
    assert pipeline.output_spec.names == ("memory",)
    assert list(pipeline.state_spec()) == ["1_Remember/hidden"]
    state = {"1_Remember/hidden": torch.randn(5, 1, 3), "other/hidden": torch.full((5, 1, 3), torch.nan)}
    passed = pipeline(StageInput(observation(5), state, {}))
    assert passed.state.keys() == {"1_Remember/hidden"}
    assert passed.aux.keys() == {"0_Encode/latent/image"}
    assert passed.obs["memory"].isfinite().all()


def test_a_pipeline_can_be_run_in_parts():
    pipeline = Pipeline(SPEC, (Encode(components=("image",), output_size=4), Remember(hidden_size=3, type="gru")))
    given = StageInput(observation(5), {"1_Remember/hidden": torch.randn(5, 1, 3)}, {})
    halfway = pipeline(given, 0, 1)
    rest = pipeline(given._replace(obs=halfway.obs), 1)
    assert torch.equal(rest.obs["memory"], pipeline(given).obs["memory"])


def test_an_empty_pipeline_passes_everything_on():
    obs = observation(2)
    passed = Pipeline(SPEC, ())(StageInput(obs, {}, {}))
    assert passed.obs == obs and passed.state == {} and passed.aux == {}


def test_names_in_and_out():
    x = torch.zeros(1)
    assert inner({"a/b/c": x, "ab/c": x, "a": x}, "a") == {"b/c": x}
    assert outer({"c": x}, "a") == {"a/c": x}
    with pytest.raises(KeyError, match="given to the actor has no component 'height'"):
        only({"joints": x}, SPEC.select(["height"]), who="the actor")


def test_mlp_encoders_are_the_networks_named():
    stage = built(
        Encode(components=("joints",), settings={"hidden_sizes": [5, 4], "nonlinearity": "tanh"}, output_size=2)
    )
    network = stage.encoders[module_key("joints")]
    assert isinstance(network, MlpModel)
    sizes = [layer.out_features for layer in network.modules() if isinstance(layer, torch.nn.Linear)]
    assert sizes == [5, 4, 2] and any(isinstance(layer, torch.nn.Tanh) for layer in network.modules())
