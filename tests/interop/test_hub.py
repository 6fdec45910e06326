"""Models of the hub by name, with a stand-in for transformers."""

from __future__ import annotations

import sys
import types

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_model, load_model
from simulator.interop.models.hub import open_hub_module
from simulator.plan import ParallelPlan


class Config:
    def to_dict(self):
        return {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "colour": 1}


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def from_pretrained(name, **options):
        calls.append((name, options))
        if name != "lab/small":
            raise OSError(f"no {name} here\nand much more")
        return Config()

    auto = types.SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoConfig=auto))
    return calls


def test_a_configuration_in_the_cache(asked):
    assert load_model("hf:lab/small").layers == 2
    assert asked == [("lab/small", {"local_files_only": True})]
    imported = import_model("hf:lab/small")
    assert imported.spec.name == "small" and imported.report.unknown[0].startswith("colour")


def test_what_is_not_in_the_cache_is_not_fetched(asked):
    with pytest.raises(
        ConfigError, match="no configuration on this machine: no openai-community/gpt2-large here"
    ) as error:
        load_model("hf:openai-community/gpt2-large")
    assert "--model gpt2-large of the catalogue" in error.value.hint
    assert all(options == {"local_files_only": True} for _, options in asked)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="transformers is not installed"):
        load_model("hf:gpt2")


class Small:
    """What a class of transformers offers, as far as it is asked for."""

    def __new__(cls, config):
        torch = pytest.importorskip("torch", reason="torch is not installed")

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.config, self.kind = config, ""
                self.embedding = torch.nn.Embedding(100, 64)
                self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))

            def set_attn_implementation(self, kind):
                self.kind = kind

            def forward(self, input_ids, labels):
                x = self.embedding(input_ids)
                for block in self.blocks:
                    x = block(x)
                return x.sum()

        return Module()


def test_a_module_of_the_hub_is_built_without_weights_and_recorded(asked, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name, value in (("architectures", ["Small"]), ("use_cache", True), ("n_positions", 128)):
        monkeypatch.setattr(Config, name, value, raising=False)
    monkeypatch.setattr(sys.modules["transformers"], "Small", Small, raising=False)
    found = open_hub_module("lab/small")
    assert found.name == "hf:lab/small" and found.max_positions == 128 and not found.module.config.use_cache
    assert all(p.device == torch.device("meta") for p in found.module.parameters())
    model = found.model(ParallelPlan(gpus=1, micro_batch=2, sequence_length=16, attention="eager"))
    assert model.n_parameters == 100 * 64 + 2 * (64 * 64 + 64) and found.module.kind == "eager"


def test_a_module_that_cannot_be_built_is_explained(asked, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")

    def broken(config):
        raise ValueError("heads do not divide hidden\nand so on")

    monkeypatch.setattr(Config, "architectures", ["Broken"], raising=False)
    monkeypatch.setattr(sys.modules["transformers"], "Broken", broken, raising=False)
    with pytest.raises(ConfigError, match="cannot build it: heads do not divide hidden"):
        open_hub_module("lab/small")
    with pytest.raises(ConfigError, match="no configuration on this machine"):
        open_hub_module("lab/other")
