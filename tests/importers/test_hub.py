"""Models of the hub by name, with a stand-in for transformers."""

from __future__ import annotations

import sys
import types

import pytest

from simulator.errors import ConfigError
from simulator.importers import import_model, load_model


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
