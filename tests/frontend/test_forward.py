"""Named models have the published FLOPs and parameters, for any batch, without a byte of weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.frontend import oracle  # noqa: E402
from tests.frontend.families import CASES, FAMILIES  # noqa: E402
from wse_sim.errors import ConfigError  # noqa: E402
from wse_sim.frontend import load_model, lower, model_names  # noqa: E402
from wse_sim.frontend.parameters import named_model, parse_parameters  # noqa: E402
from wse_sim.frontend.zoo import build  # noqa: E402
from wse_sim.graph import KernelGraph, TensorKind  # noqa: E402

ROOT = Path(__file__).parents[2]

# What torch's FLOP counter gives for the eager models (2 per multiply-accumulate, attention dense).
COUNTED = [
    ("bert-large", 128, 87_189_618_688, 335_174_458),
    ("gpt2-xl", 1024, 3_506_703_564_800, 1_557_611_200),
    ("llama2-7b", 2048, 29_261_612_187_648, 6_738_415_616),
    ("resnet50", None, 8_178_368_512, 25_557_032),
]


def check_wired(graph: KernelGraph) -> None:
    """Check that every tensor is made before it is read, every kernel and tensor exists, and names are unique."""
    assert len({k.name for k in graph}) == len(graph)
    made = {t.name for t in graph.tensors.values() if t.kind in (TensorKind.INPUT, TensorKind.CONSTANT)}
    used = set()
    for kernel in graph:
        for tensor in kernel.inputs:
            # Results other than a loss get their gradient from outside.
            assert tensor in made or tensor.startswith("grad."), (kernel.name, tensor)
        for name in (*kernel.inputs, *kernel.outputs, *kernel.parameters):
            assert name in graph.tensors, (kernel.name, name)
        made.update(kernel.outputs)
        used.update((*kernel.inputs, *kernel.outputs, *kernel.parameters))
        assert kernel.sample_dim is None or kernel.sample_dim in kernel.dims
        assert not kernel.forward or graph.kernel(kernel.forward).phase == "forward"
    for repeat in graph.repeats:
        assert repeat.count > 1
        assert len({len(instance) for instance in repeat.instances}) == 1


@pytest.mark.slow
def test_a_diffusion_transformer_has_the_published_parameters() -> None:
    """DiT-XL/2 has 675,129,632 parameters, of which 256 positions of 1,152 are a table that does not train. Its paper
    counts 118.64 billion multiply-accumulates, with those of the attention; noise and variance have four channels each.
    """
    graph = load_model("dit-xl2")
    assert graph.parameters == 675_129_632 - 256 * 1152
    assert abs(graph.forward_flops / 2 / 118.64e9 - 1) < 3e-4


@pytest.mark.parametrize(
    ("family", "fixed"), [("resnet", "relu"), ("dit", "gelu"), ("unet", "silu"), ("moe", "swiglu")]
)
def test_an_activation_that_a_family_does_not_read_is_refused(family: str, fixed: str) -> None:
    """The fixed activation of the family may be stated; another one had no effect."""
    name = {"resnet": "resnet18", "dit": "dit-xl2", "unet": "unet-sd15", "moe": "mixtral-8x7b"}[family]
    known = named_model(name).model.model_dump(exclude_unset=True)
    assert parse_parameters({**known, "activation": fixed}).family == family
    other = "silu" if fixed == "relu" else "relu"
    with pytest.raises(ConfigError, match=f"activation '{other}' has no effect .* which has {fixed}; leave"):
        parse_parameters({**known, "activation": other})


@pytest.mark.parametrize("half", ["fp16", "bf16", "cbfloat16"])
def test_sums_of_level_two_have_the_half_type(half: str) -> None:
    """The label of the sums was fp16 for all three; their rate is that of 16 bits."""
    graph = load_model("fc-mnist", precision=f"{half}:2")
    assert {k.attrs["accumulate"] for k in graph if "accumulate" in k.attrs} == {half}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seq", "flops", "parameters"), COUNTED, ids=[c[0] for c in COUNTED])
def test_published_models(name: str, seq: int | None, flops: int, parameters: int) -> None:
    """FLOPs and parameters are equal to the published ones."""
    graph = load_model(name, seq=seq)
    assert graph.forward_flops == flops
    assert graph.parameters == parameters
    check_wired(graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_flops_of_every_family(name: str) -> None:
    """Small models of all families are compared with torch's registry."""
    module, args = build(parse_parameters(FAMILIES[name]))
    graph = load_model(FAMILIES[name])
    assert graph.forward_flops == oracle.flops_of(oracle.forward(module, args))
    check_wired(graph)


@pytest.mark.slow
def test_samples_scale() -> None:
    """A model of 6 samples equals the model captured for 6 samples, kernel by kernel."""
    for name in ("gpt", "bert with 5 masked", "resnet", "vit", "mlp"):
        parameters = parse_parameters(FAMILIES[name])
        module, args = build(parameters, batch=6)

        scaled, captured = load_model(FAMILIES[name], batch=6), lower(module, args)
        # The rows of a generated kernel only matter where it reduces; they stay those of the capture.
        sizes = [
            [{**k.dims, "rows": 0} if k.family == "generated" else k.dims for k in g]
            for g in (scaled, captured)
        ]
        assert sizes[0] == sizes[1], name
        assert scaled.total_flops == captured.total_flops
        assert scaled.samples == captured.samples == 6
        assert scaled.input_bytes == captured.input_bytes


def test_every_shipped_model_is_valid() -> None:
    """All files of configs/models are read, and name the source of their sizes."""
    names = model_names()
    assert len(names) >= 30
    for name in names:
        assert named_model(name).name == name
        assert named_model(name).source


@pytest.mark.slow
def test_facts_are_carried() -> None:
    """The facts contain what the compiler needs."""
    facts = load_model(FAMILIES["gpt"], seq=20, training=True).facts
    expected = {
        "family": "decoder",
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 160,
        "vocab": 101,
    }
    assert expected.items() <= dict(facts).items()
    assert facts["seq"] == 20
    assert facts["dropout"] == 0.1
    assert load_model(FAMILIES["llama"]).facts["dropout"] == 0.0


def test_importing_the_frontend_leaves_torch_alone() -> None:
    """`import wse_sim.frontend` also works without torch."""
    code = "import sys, wse_sim.frontend as f; f.model_names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_extra_is_named() -> None:
    """If torch is missing, the sentence states what to install."""
    code = (
        "import os, sys; sys.modules['torch'] = None; os.environ['WSE_SIM_CACHE'] = 'none'\n"
        "from wse_sim.frontend import load_model\n"
        "from wse_sim.errors import ModelError\n"
        "try: load_model('fc-mnist')\n"
        "except ModelError as fault: assert 'pip install wse-sim[torch]' in str(fault), fault\n"
        "else: raise SystemExit('no fault')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


LARGE = """
import re, pathlib
from tests.work import python_calls
from wse_sim.frontend import load_model

load_model("gpt3-125m", training=True)  # what happens once, at the first capture
smaller, _ = python_calls(lambda: load_model("gpt3-13b", training=True))
calls, graph = python_calls(lambda: load_model("gpt3-175b", training=True))
repeats = [(r.count, len(r.instances[0])) for r in graph.repeats]
# Not ru_maxrss: that one starts from the peak of the process that started this one.
peak_kib = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]
print(calls, smaller, graph.parameters, repeats, peak_kib, sep=";")
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of one process is read from /proc"
)
def test_gpt3_175b_is_quick_and_small() -> None:
    """175 billion weights cost no memory; 96 layers cost no more work per layer than 40 do. The test runs in its own
    process.
    """
    done = subprocess.run(
        [sys.executable, "-c", LARGE],
        cwd=ROOT,
        env={**os.environ, "WSE_SIM_CACHE": "none"},
        capture_output=True,
        text=True,
        check=True,
    )
    calls, smaller, parameters, repeats, peak_kib = done.stdout.split(";")
    assert int(calls) <= 1.3 * 96 / 40 * int(smaller)
    assert int(parameters) == 174_604_259_328
    assert repeats == "[(96, 35)]"
    assert int(peak_kib) < 1_500_000


# Parameters that the authors or torchvision state; qwen2-72b without the biases of its q, k, v.
STATED = {
    "mistral-7b": 7_241_732_096,
    "codellama-34b": 33_743_970_304,
    "llama2-70b": 68_976_648_192,
    "llama3-70b": 70_553_706_496,
    "qwen2-72b": 72_706_203_648 - 80 * (8192 + 2 * 1024),
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATED)
def test_stated_parameters(name: str) -> None:
    """Large models and all residual networks have the parameters that are stated for them."""
    assert load_model(name).parameters == STATED[name]


def one_of_each_kind() -> list[str]:
    """Return the shallowest shipped model of every kind: models of one kind differ in sizes alone."""
    found: dict[tuple[object, ...], str] = {}
    for name in sorted(model_names(), key=lambda name: named_model(name).model.layers):
        fields = named_model(name).model.model_dump()
        groups_heads = fields["kv_heads"] not in (None, fields["heads"])
        kind = tuple(value for value in fields.values() if value is None or isinstance(value, str | bool))
        found.setdefault((*kind, groups_heads), name)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each_kind())
def test_a_shipped_model_of_every_kind_lowers(name: str) -> None:
    """It is lowered for training at full depth; the golden numbers run further models."""
    graph = load_model(name, training=True, batch=2)
    check_wired(graph)
    assert graph.repeats
