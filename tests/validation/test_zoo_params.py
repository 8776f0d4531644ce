"""Params files of the vendor's Model Zoo in both shapes: sizes, batch, length, precision; what has no counterpart is refused."""

from __future__ import annotations

import copy

import pytest
import yaml

from wse_sim.errors import ConfigError
from wse_sim.frontend.parameters import named_model
from wse_sim.validation.zoo_params import read_zoo_params

GPT2 = {
    "train_input": {"data_processor": "GptHDF5DataProcessor", "batch_size": 112},
    "model": {
        "hidden_size": 768, "vocab_size": 50257, "position_embedding_type": "learned", "share_embedding_weights": True,
        "max_position_embeddings": 1024, "num_hidden_layers": 12, "dropout_rate": 0.1, "num_heads": 12,
        "attention_type": "scaled_dot_product", "filter_size": 3072, "nonlinearity": "gelu", "mixed_precision": True,
    },
    "optimizer": {"optimizer_type": "adamw"},
    "runconfig": {"max_steps": 151600},
}  # fmt: skip
"""A decoder in the shape of releases 1.6 to 2.2."""
LLAMA = {
    "trainer": {
        "init": {
            "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 2}},
            "model": {
                "name": "llama", "vocab_size": 32000, "hidden_size": 4096, "position_embedding_type": "rotary", "rotary_dim": 128,
                "share_embedding_weights": False, "max_position_embeddings": 2048, "num_hidden_layers": 32, "dropout_rate": 0.0,
                "num_heads": 32, "filter_size": 11008, "nonlinearity": "swiglu",
                "attention_module": "multiquery_attention", "extra_attention_params": {"num_kv_groups": 32},
            },
            "optimizer": {"AdamW": {"weight_decay": 0.1}},
            "precision": {"enabled": True, "fp16_type": "cbfloat16"},
        },
        "fit": {"train_dataloader": {"data_processor": "GptHDF5MapDataProcessor", "batch_size": 1024}},
    }
}  # fmt: skip
"""The same in that of releases 2.3 to 2.10."""
BERT = {
    "train_input": {"data_processor": "BertCSVDataProcessor", "max_sequence_length": 128, "max_predictions_per_seq": 20, "batch_size": 512},
    "model": {
        "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24, "num_heads": 16, "filter_size": 4096,
        "encoder_nonlinearity": "gelu", "dropout_rate": 0.1, "max_position_embeddings": 512, "disable_nsp": False, "mixed_precision": False,
    },
    "optimizer": {"optimizer_type": "Lamb"},
}  # fmt: skip
MNIST = {
    "train_input": {"batch_size": 4},
    "model": {"name": "fc_mnist", "depth": 10, "hidden_size": 50, "dropout": 0.0, "activation_fn": "relu"},
    "optimizer": {"optimizer_type": "SGD"},
}
VIT = {
    "trainer": {
        "init": {"model": {"name": "vision_transformer", "num_classes": 1000, "hidden_size": 768, "num_hidden_layers": 12, "num_heads": 12,
                           "filter_size": 3072, "nonlinearity": "gelu", "image_size": [224, 224], "patch_size": [16, 16]}},
        "fit": {"train_dataloader": {"batch_size": 2850}},
    }
}  # fmt: skip


def read(tmp_path, data):
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return read_zoo_params(path)


@pytest.mark.parametrize(
    ("data", "name", "besides"),
    [
        (GPT2, "gpt2-small", {"tied", "max_positions"}),
        (LLAMA, "llama2-7b", {"tied", "rotary_dim", "dropout"}),
        (BERT, "bert-large-pretraining", set()),
        (MNIST, "fc-mnist", set()),
        (VIT, "vit-base", {"dropout"}),
    ],
)
def test_params_state_the_model_that_ships_by_name(tmp_path, data, name, besides):
    """`besides`: what the params file states and the shipped file leaves to its default."""
    found, known = read(tmp_path, data).model.model_dump(), named_model(name).model.model_dump()
    assert {key for key in found if found[key] != known[key]} == besides


def test_batch_systems_optimizer_and_precision_are_read(tmp_path):
    both = [read(tmp_path, data) for data in (GPT2, LLAMA, BERT, MNIST)]
    assert [p.batch for p in both] == [112, 1024, 512, 4]
    assert [p.systems for p in both] == [None, 2, None, None]
    assert [p.optimizer for p in both] == ["adamw", "adamw", None, "sgd"]
    assert [p.precision for p in both] == [None, "cbfloat16", "fp32", None]
    assert [p.seq for p in both] == [1024, 2048, 128, None]
    assert "max_position_embeddings" in both[0].notes[0]


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("position_embedding_type",), "alibi", "position_embedding_type"),
        (("nonlinearity",), "tanh", "nonlinearity"),
        (("moe",), {"num_experts": 8}, "model.moe"),
        (("attention_sliding_window_length",), 4096, "sliding_window"),
        (("attention_inner_dim",), 512, "attention_inner_dim"),
        (("name",), "dpo", "'dpo' is not translated"),
        (("num_heads",), "12", "num_heads"),
        (("num_heads",), 7, "heads"),
        (("filter_size",), None, "filter_size"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_file_and_remedy(tmp_path, path, value, sentence):
    data = copy.deepcopy(GPT2)
    data["model"][path[0]] = value
    with pytest.raises(ConfigError, match=sentence) as fault:
        read(tmp_path, data)
    assert str(fault.value).startswith(str(tmp_path / "params.yaml"))


def test_odd_shapes_are_refused(tmp_path):
    for data in (
        {"model": GPT2["model"]},
        {"trainer": [LLAMA["trainer"]]},
        {"trainer": {"init": {"model": []}}},
    ):
        with pytest.raises(ConfigError, match=r"params.yaml: .*state `model:`"):
            read(tmp_path, data)
