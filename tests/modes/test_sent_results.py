"""Results that return to the host: bytes on paper, the rate that the wafer's I/O leaves, and notes with helpful
numbers.
"""

from __future__ import annotations

import re

import pytest

from wse_sim import api
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, Tensor, TensorKind, frozen
from wse_sim.graph.results import sent_bytes, what_is_sent
from wse_sim.hardware import load_cluster, load_wafer

STREAMED = "weight-streaming"
MODES = ("pipelined", STREAMED)
SEQ, VOCABULARY = 64, 50257
IO_BYTES_PER_S = 150e9  # of a WSE-2


def gpt2(mode: str, send: str | None = None, batch: int = 64, **more) -> Result:
    result = api.run("gpt2-small", mode=mode, phase="inference", batch=batch, seq=SEQ, send=send, **more)
    assert isinstance(result, Result)
    return result


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("send", "wanted_bytes"),
    [
        ("everything", SEQ * VOCABULARY * 2),
        ("last", VOCABULARY * 2),
        ("top:5", SEQ * 5 * (2 + 4)),  # a value in fp16 and an index in int32
        (f"top:{10**6}", SEQ * VOCABULARY * (2 + 4)),  # no more than there are
        ("loss", 4),
    ],
)
def test_bytes_of_results_are_those_on_paper(send: str, wanted_bytes: float) -> None:
    graph = api.load_model("gpt2-small", seq=SEQ)
    assert sent_bytes(graph, send) == pytest.approx(wanted_bytes)
    assert sent_bytes(graph.with_samples(6), send) == pytest.approx(6 * wanted_bytes)


def test_caches_stay_on_the_wafer() -> None:
    """With tokens as input, three dimensions send the last row and four nothing; without tokens everything is sent."""
    logits, cache = (
        Tensor(name, shape, "fp16", TensorKind.OUTPUT)
        for name, shape in (("y", (2, 8, 100)), ("k", (2, 4, 8, 16)))
    )
    for dtype, wanted_bytes in (("int64", 2 * 100 * 2), ("fp16", 2 * (8 * 100 + 4 * 8 * 16) * 2)):
        given = Tensor("x", (2, 8), dtype, TensorKind.INPUT)
        graph = KernelGraph("both", (), frozen({t.name: t for t in (given, logits, cache)}), samples=2)
        assert sent_bytes(graph, what_is_sent(graph, None)) == wanted_bytes


def test_the_default_is_what_a_loop_needs() -> None:
    """Logits of every token send the last row, a classifier everything, training the loss."""
    assert what_is_sent(api.load_model("gpt2-small", seq=SEQ), None) == "last"
    assert what_is_sent(api.load_model("fc-mnist"), None) == "everything"
    assert what_is_sent(api.load_model("fc-mnist", training=True), None) == "loss"


@pytest.mark.parametrize("mode", [pytest.param("pipelined", marks=pytest.mark.slow), STREAMED])
def test_the_wafer_sends_no_faster_than_its_edge(mode: str) -> None:
    everything, last, loss = (gpt2(mode, send) for send in ("everything", None, "loss"))
    bound = IO_BYTES_PER_S / (SEQ * VOCABULARY * 2)
    assert everything.transmission_samples_per_s == pytest.approx(bound)
    assert everything.samples_per_s <= bound * (1 + 1e-9)
    assert everything.samples_per_s <= last.samples_per_s * (1 + 1e-9)
    assert last.samples_per_s <= loss.samples_per_s * (1 + 1e-9)
    assert any("send=last" in note for note in last.notes)
    assert not any("leave the wafer" in note for note in everything.notes)


@pytest.mark.slow
def test_results_that_bind_are_named() -> None:
    """A sixteenth of the edge slows a pipeline; where weights pass the edge too, a large batch does."""
    slow = load_wafer("wse2").derive(io_bytes_per_s=IO_BYTES_PER_S / 16)
    for result in (gpt2("pipelined", "everything", wafer=slow), gpt2(STREAMED, "everything", batch=4096)):
        assert result.binding == "results_io"
        assert any(note.startswith("results bind") for note in result.notes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("pipelined", marks=pytest.mark.slow), STREAMED])
def test_the_number_of_workers_that_is_named_lifts_the_bound(mode: str) -> None:
    found = api.run("resnet50", mode=mode, phase="inference", batch=256)
    assert isinstance(found, Result)
    assert found.binding == "input_workers"
    (workers,) = (
        int(match[1])
        for note in found.notes
        if (match := re.search(r"input_workers_per_system: (\d+)", note))
    )
    more = load_cluster().derive(input_workers_per_system=workers)
    lifted = api.run("resnet50", mode=mode, phase="inference", batch=256, cluster=more)
    assert isinstance(lifted, Result)
    assert lifted.samples_per_s > 0.95 * found.compute_samples_per_s


@pytest.mark.slow
def test_a_chain_of_wafers_sends_the_results_of_the_last() -> None:
    """Tensors that one wafer sends to the next are not results."""
    plan = api.compile(
        api.load_model("gpt2-small", seq=SEQ), mode="pipelined-systems", batch=8, systems=2, send="loss"
    )
    assert plan.result_bytes_per_sample == plan.line.result_bytes_per_sample == 4


@pytest.mark.parametrize(
    "send", ["top:0", "top:-1", "top:١", "top:²", "top:1_0", f"top:{'9' * 5000}", "top", "first", ""]
)
def test_what_cannot_be_sent_is_refused(send: str) -> None:
    for training in (False, True):
        with pytest.raises(ModelError, match="use 'everything', 'last', 'loss' or 'top:K'"):
            api.compile(api.load_model("fc-mnist", training=training), mode="pipelined", send=send)


@pytest.mark.slow
def test_training_says_that_it_sends_the_loss_alone() -> None:
    plan = api.compile(api.load_model("fc-mnist", training=True), mode="pipelined", send="everything")
    assert any("send=everything has no effect in training" in note for note in plan.notes)
