"""Small models of every family of the zoo."""

from __future__ import annotations

from typing import Any

import pytest

_SMALL: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 160, "seq": 24, "vocab": 101}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {"family": "decoder", **_SMALL},
    "gpt without dropout": {"family": "decoder", **_SMALL, "dropout": 0.0},
    "gpt untied": {"family": "decoder", **_SMALL, "tied": False},
    "llama": {"family": "decoder", **_SMALL, "kv_heads": 4, "activation": "swiglu", "positions": "rotary"},
    "gpt-j": {"family": "decoder", **_SMALL, "positions": "rotary", "parallel_residual": True, "rotary_dim": 8},
    "bert": {"family": "encoder", **_SMALL},
    "bert with 5 masked": {"family": "encoder", **_SMALL, "mlm_positions": 5},
    "mlp": {"family": "mlp", "layers": 3, "hidden": 50, "input": 784, "classes": 10, "activation": "relu"},
    "resnet": {"family": "resnet", "layers": 18, "input": 64, "classes": 10, "activation": "relu"},
    "resnet deep": {"family": "resnet", "layers": 50, "input": 64, "classes": 10, "activation": "relu"},
    "vit": {"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "input": 32, "patch": 8, "classes": 10},
    "dit": {"family": "dit", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "input": 16, "patch": 2, "classes": 10},
    "unet": {
        "family": "unet", "layers": 1, "hidden": 32, "heads": 4, "input": 16, "context": 7, "context_width": 24,
    },
}  # fmt: skip

# These are slow to capture twice or close to another case.
_SLOW = ("unet", "resnet deep", "gpt without dropout")
CASES = [pytest.param(n, marks=pytest.mark.slow) if n in _SLOW else n for n in FAMILIES]
