"""The decoder layer of the examples: the layer of transformers, PyTorch's values on both generations, faults that its check sees."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from wse_sim.csl.host.commands import run_commands

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "csl_decoder"
RUN_S = 200


def ran(
    folder: Path, arch: str, changed: tuple[str, str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The small command file in a copy of the folder; `changed`: file, text, what is there instead."""
    copy = folder / "csl_decoder"
    shutil.copytree(EXAMPLE, copy)
    if changed:
        name, before, after = changed
        text = (copy / name).read_text(encoding="utf-8")
        assert text.count(before) == 1
        (copy / name).write_text(text.replace(before, after), encoding="utf-8")
    return run_commands(copy / f"commands_small_{arch}.sh", quiet=True, timeout_s=RUN_S, strict=True)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_the_small_layer(tmp_path: Path, arch: str) -> None:
    """All tokens within the tolerance; with the same roundings the order of f32 sums is all that differs.

    Sums have at most 70 terms, three follow each other: 3 sqrt(70) 2^-24 = 1.5e-6 in the 2-norm.
    """
    done = ran(tmp_path, arch)
    assert done.returncode == 0, done.stderr
    found = re.search(r"with the same roundings (\S+)", done.stdout)
    assert found is not None
    assert float(found[1]) < 1.5e-6
    assert "SUCCESS!" in done.stdout


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("pe.csl", "@fsubs(first, first, turned_second)", "@fadds(first, first, turned_second)"),
        ("pe.csl", "column_of_pe <= owner", "column_of_pe < owner"),  # the newest position is left out
        ("attention.csl", "result_dsd, math.inv_f32(result[0])", "result_dsd, 0.25"),
    ],
    ids=["rotation", "newest", "softmax"],
)
def test_a_wrong_layer_is_seen(tmp_path: Path, file: str, before: str, after: str) -> None:
    """The script ends with status 1 at the comparison."""
    done = ran(tmp_path, "wse2", (file, before, after))
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


def _module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("reference")


def test_the_reference_is_the_layer_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token with a cache, and the whole sequence at once in transformers' layer with the same weights."""
    qwen2 = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")
    reference = _module(monkeypatch)
    sizes = reference.Sizes(heads=6, groups=2, head_size=16, hidden=40, inner=72)
    weights = reference.random_weights(sizes, seed=3)
    config = qwen2.Qwen2Config(
        hidden_size=40, intermediate_size=72, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=1, head_dim=16,
        rms_norm_eps=reference.EPS, rope_parameters={"rope_type": "default", "rope_theta": reference.THETA},
        attn_implementation="eager",
    )  # fmt: skip
    theirs = qwen2.Qwen2DecoderLayer(config, 0).eval()
    names = {
        f"self_attn.{n}_proj.{kind}": weights[f"{n}_{key}"]
        for n in "qkv"
        for kind, key in (("weight", "proj"), ("bias", "bias"))
    }
    names |= {"self_attn.o_proj.weight": weights["o_proj"]}
    names |= {f"mlp.{n}_proj.weight": weights[f"{n}_proj"] for n in ("gate", "up", "down")}
    names |= {
        "input_layernorm.weight": weights["norm_1"],
        "post_attention_layernorm.weight": weights["norm_2"],
    }
    theirs.load_state_dict(names, strict=True)
    tokens = torch.randn(9, 40, generator=torch.Generator().manual_seed(5))
    layer = reference.Layer(sizes, weights)
    found = torch.stack([layer.step(token) for token in tokens])
    positions = torch.arange(9)[None]
    rotary = qwen2.Qwen2RotaryEmbedding(config)(tokens[None], positions)
    mask = torch.full((9, 9), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        answer = theirs(tokens[None], attention_mask=mask, position_ids=positions, position_embeddings=rotary)
    expected = answer[0] if isinstance(answer, tuple) else answer
    torch.testing.assert_close(found, expected.view(9, 40), rtol=1e-5, atol=1e-5)
