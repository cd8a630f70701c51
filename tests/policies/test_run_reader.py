"""Reading run folders: the newest weights, nothing executed, every damage named."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file

from striderl.policies.run_reader import newest_model, read_run, read_weights


def run_folder(tmp_path, **files):
    (tmp_path / "config.json").write_text('{"policy": {"a": 1}}')
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(content)
    return tmp_path


def test_config_and_newest_weights_are_read(tmp_path):
    folder = run_folder(tmp_path)
    torch.save({"model_state_dict": {"w": torch.tensor([1.0])}, "iter": 900}, folder / "model_900.pt")
    save_file({"w": torch.tensor([2.0])}, folder / "model_1000.safetensors")
    config, weights = read_run(folder)
    assert config == {"policy": {"a": 1}} and weights["w"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["model_9.pt", "model_10.pt"], "model_10.pt"),
        (["model_10.pt", "model_10.safetensors"], "model_10.safetensors"),
        (["model.pt", "model_0.pt"], "model_0.pt"),
        (["model.safetensors"], "model.safetensors"),
        (["model_5.pt", "model_7.txt", "optimizer_9.pt"], "model_5.pt"),
        (["best_model_3.pth", "model_2.pt"], "best_model_3.pth"),
    ],
)
def test_numbers_are_compared_as_numbers(tmp_path, names, newest):
    run_folder(tmp_path, **{name.replace(".", "__"): b"" for name in names})
    assert newest_model(tmp_path).name == newest


def test_bare_state_dicts_are_weights_too(tmp_path):
    torch.save({"w": torch.tensor([1.0])}, tmp_path / "model_1.pt")
    assert read_weights(tmp_path / "model_1.pt")["w"].tolist() == [1.0]


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no model file such as .*config\.json"):
        read_run(run_folder(tmp_path))


@pytest.mark.parametrize(("text", "reason"), [("{", "not JSON"), ("[1]", "found list")])
def test_a_damaged_config_is_named(tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_run(tmp_path)


def test_damaged_weights_are_named(tmp_path):
    torch.save({"w": torch.zeros(100)}, tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    for content in (b"", b"garbage", good[:200], good[: len(good) // 2], good[:-30]):
        (tmp_path / "model_1.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"model_1\.pt' is damaged"):
            read_weights(tmp_path / "model_1.pt")
    save_file({"w": torch.zeros(100)}, tmp_path / "model_2.safetensors")
    content = (tmp_path / "model_2.safetensors").read_bytes()
    (tmp_path / "model_2.safetensors").write_bytes(content[:-10])
    with pytest.raises(ValueError, match=r"model_2\.safetensors' is damaged"):
        read_weights(tmp_path / "model_2.safetensors")


def test_a_file_without_weights_says_what_it_has(tmp_path):
    torch.save({"iter": 3, "infos": None}, tmp_path / "model_1.pt")
    with pytest.raises(ValueError, match=r"holds no weights.*\['infos', 'iter'\]"):
        read_weights(tmp_path / "model_1.pt")
    torch.save([1, 2], tmp_path / "model_2.pt")
    with pytest.raises(ValueError, match="wants a state dict, found list"):
        read_weights(tmp_path / "model_2.pt")


class Evil:
    """Pickled, it asks the reader to create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_is_executed(tmp_path, zipped):
    target = tmp_path / "was_run"
    model = tmp_path / "model_1.pt"
    if zipped:
        torch.save({"model_state_dict": {"w": Evil(str(target))}}, model)
    else:
        model.write_bytes(pickle.dumps({"w": Evil(str(target))}, protocol=2))
    with pytest.raises(ValueError, match="never run"):
        read_weights(model)
    assert not target.exists()
