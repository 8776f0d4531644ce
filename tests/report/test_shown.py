"""The displays of prompts and notebooks: one line, a card, a picture, a table of two results; and pickles."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from html.parser import HTMLParser
from typing import get_type_hints

import pytest

import wse_sim
from tests.report.made_results import streaming_result
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.keywords import RunKeywords
from wse_sim.options import RunOptions
from wse_sim.report.card import card
from wse_sim.report.difference import diff

VOID = {"rect", "br"}
MOST_CHARACTERS = 30_000  # of a card; the repr of all fields had 9.7 million for GPT-2 small


class Balanced(HTMLParser):
    """Counts opening and closing tags; a card must not extend beyond its cell."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.scripts += tag in ("script", "link", "img", "iframe")
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.scripts += tag in ("script", "link", "img", "iframe")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(html: str) -> Balanced:
    found = Balanced()
    found.feed(html)
    assert not found.open
    assert not found.scripts
    return found


@pytest.fixture(scope="module")
def result() -> Result:
    found = wse_sim.run("fc-mnist", mode="pipelined", batch=256)
    assert isinstance(found, Result)
    return found


def test_large_objects_are_one_line_and_a_card(result: Result) -> None:
    misfit = wse_sim.run("gpt3-13b", mode="pipelined", batch=64)
    for item in (result, result.plan, result.plan.graph, misfit, streaming_result()):
        assert len(repr(item)) < 300, type(item)
        assert "\n" not in repr(item)
        html = item._repr_html_()
        assert len(html) < MOST_CHARACTERS
        read(html)
    assert repr(result) == (
        "<Result fc-mnist, pipelined, training, batch 256, wse2: 141,000 samples/s, bound by input_workers>"
    )
    assert repr(misfit).startswith("<Infeasible gpt3-13b does not fit pipelined: SRAM")


def test_the_card_of_a_result_has_the_five_lines_and_its_regions(result: Result) -> None:
    found = read(result._repr_html_())
    for line in (
        "Samples/s",
        "Compute Samples/s",
        "Transmission Samples/s",
        "Active PEs (%)",
        "141,000",
        "MFU",
    ):
        assert line in found.words, line
    assert result._repr_html_().count("<rect") == len(result.areas) + 1  # and the wafer's own


def test_names_of_strangers_stay_text() -> None:
    """The name of a model comes from the author of its file."""
    misfit = wse_sim.Infeasible(
        "pipelined", "<script>alert(1)</script>", "SRAM", 2.0, 1.0, "bytes", "</div>", "use '&' less"
    )
    assert "<script>alert(1)</script>, pipelined: does not fit" in read(card(misfit)).words


@pytest.mark.slow
def test_two_modes_are_a_table() -> None:
    rows = wse_sim.compare("gpt3-13b", batch=64)
    assert isinstance(rows, tuple)
    assert len(repr(rows).splitlines()) == 2
    words = read(rows._repr_html_()).words
    assert {"pipelined", "weight-streaming", "Fits", "no", "yes", "Remedy"} <= set(words)


def test_results_plans_and_graphs_travel_by_pickle(result: Result) -> None:
    """multiprocessing and joblib pickle these; copy.deepcopy does the same."""
    for item in (result, result.plan.graph, wse_sim.run("gpt3-13b", mode="pipelined", batch=64)):
        assert pickle.loads(pickle.dumps(item)) == item
        assert copy.deepcopy(item) == item
    again = pickle.loads(pickle.dumps(result.plan))
    assert wse_sim.simulate(again) == wse_sim.simulate(result.plan)


def test_a_figure_draws_itself(result: Result) -> None:
    """IPython calls `_repr_png_` of the last line of a cell."""
    assert result.heatmap("busy")._repr_png_().startswith(b"\x89PNG")


def test_keywords_of_a_run_are_its_options() -> None:
    """The keywords that type checkers and completion see are the declared options, with their types and defaults."""
    declared = {
        name: kind for name, kind in get_type_hints(RunOptions).items() if name in RunOptions.model_fields
    }
    assert get_type_hints(RunKeywords) == declared
    for function in (wse_sim.run, wse_sim.compare):
        parameters = inspect.signature(function).parameters
        assert set(declared) < set(parameters)
        defaults = RunOptions()
        assert all(parameters[name].default == getattr(defaults, name) for name in declared)


def test_every_public_name_is_listed_and_there() -> None:
    assert dir(wse_sim) == sorted(wse_sim.__all__)
    assert all(getattr(wse_sim, name) is not None for name in wse_sim.__all__)


def test_a_difference_adds_up(result: Result) -> None:
    """The reported changes of kernels, links and resources are differences of the results' own numbers, per sample."""
    other = wse_sim.run("fc-mnist", mode="pipelined", batch=512, wafer="wse3")
    assert isinstance(other, Result)
    found = diff(result, other)
    asked = {name: (one, two) for name, one, two in found.settings}
    assert asked["batch"] == ("256", "512")
    assert asked["wafer.name"] == ("wse2", "wse3")
    sums = [sum(use.busy_s * use.cores for use in each.kernels) / each.batch for each in (result, other)]
    assert sum(change.size for change in found.kernels) == pytest.approx(sums[1] - sums[0])
    wavelets = [float(each.link_wavelets.sum(dtype=float)) / each.batch for each in (result, other)]
    assert sum(change.size for change in found.links) == pytest.approx(wavelets[1] - wavelets[0], rel=1e-6)
    sizes = [abs(change.size) for change in found.kernels]
    assert sizes == sorted(sizes, reverse=True)
    assert max(map(len, found.text().splitlines()[3:])) <= 80


def test_a_result_beside_itself_differs_in_nothing(result: Result) -> None:
    found = diff(result, result)
    assert not found.settings
    assert not any(change.size for change in (*found.resources, *found.links, *found.kernels))
    assert "the same rate" in found.brief


def test_what_does_not_fit_has_no_difference(result: Result) -> None:
    misfit = wse_sim.run("gpt3-13b", mode="pipelined", batch=64)
    with pytest.raises(WseError, match="only results that fit are compared; gpt3-13b does not fit"):
        diff(result, misfit)


def test_a_difference_is_a_page_with_bars_of_both(result: Result, tmp_path) -> None:
    """Its longest bar is complete, every change is a row, and names are escaped."""
    import re

    from wse_sim.report.difference_page import write_difference

    other = wse_sim.run("fc-mnist", mode="pipelined", batch=512, wafer="wse3")
    assert isinstance(other, Result)
    found = diff(result, other)
    text = write_difference(found, tmp_path).read_text(encoding="utf-8")
    changes = [c for part in (found.resources, found.links, found.kernels) for c in part if c.size]
    assert text.count('<i class="second"') == len(changes) > 4
    widths = [float(width) for width in re.findall(r'<i class="\w+" style="width: ([\d.]+)%"', text)]
    assert max(widths) == 100.0
    assert min(widths) >= 0.0
    assert "<td>batch</td><td>256</td><td>512</td>" in text
    assert "http" not in text.partition("</style>")[2]
    hostile = dataclasses.replace(result, model="<script>x</script>")
    assert "<script>x" not in write_difference(diff(hostile, other), tmp_path).read_text(encoding="utf-8")


def test_machines_are_one_line_and_a_card() -> None:
    """A wafer printed 3,460 characters of constants."""
    wafer, cluster = wse_sim.load_wafer("wse2"), wse_sim.load_cluster()
    assert repr(wafer) == "<Wafer wse2: 996 x 757 cores, 48 KiB of SRAM per core, 1.1 GHz>" == str(wafer)
    assert repr(cluster).startswith("<Cluster default: up to ")
    for machine in (wafer, cluster):
        words = read(machine._repr_html_()).words
        assert any(f"{len(machine.provenance)} constants" in word for word in words)
        assert pickle.loads(pickle.dumps(machine)) == machine


def test_two_machines_differ_in_their_constants() -> None:
    """The comparison has names, both values and units; a result is not a wafer."""
    wafer = wse_sim.load_wafer("wse2")
    found = wse_sim.diff(wafer, wafer.derive(sram_bytes=65536, clock_hz=1.0e9))
    assert {row[0]: row[1:] for row in found.rows} == {
        "clock_hz": ("1.1e+09", "1e+09", "Hz"),
        "sram_bytes": ("49,152", "65,536", "bytes"),
    }
    assert repr(found) == "<ConstantsDifference wse2 -> wse2: 2 constants differ>"
    both = wse_sim.diff(wafer, wse_sim.load_wafer("wse3"))
    assert len(both.rows) > 5
    assert max(map(len, both.text().splitlines())) <= 80
    with pytest.raises(WseError, match="Wafer and Cluster cannot be compared"):
        wse_sim.diff(wafer, wse_sim.load_cluster())  # type: ignore[call-overload]


def test_a_result_travels_small(result: Result) -> None:
    """Links and slices of a wafer are megabytes that repeat; 12 of them for this model, 30 for GPT-2 small."""
    assert result.link_wavelets.nbytes > 10_000_000
    assert len(pickle.dumps(result)) < 300_000
