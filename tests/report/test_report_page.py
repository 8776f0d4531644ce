"""The page: small enough, without the network, and interactive in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tests.browser import faults, headless, wait
from tests.work import python_calls
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.report import html, tables, views
from wse_sim.report.difference import diff
from wse_sim.report.difference_page import write_difference
from wse_sim.report.treemap import HEIGHT, WIDTH, squarified, treemap

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def page(wafer_result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a whole wafer."""
    return html.write_report(wafer_result, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
def test_page_is_small_fast_and_self_contained(wafer_result: Result, tmp_path: Path) -> None:
    """It has under 2.5 MB and takes under a million calls for 850,000 cores; it names no address to load from."""
    html.write_report(wafer_result, tmp_path)  # what happens once, when libraries are imported
    calls, path = python_calls(lambda: html.write_report(wafer_result, tmp_path))
    assert calls < 1_000_000
    text = path.read_text()
    assert path.name == "report.html"
    assert len(text) < 2.5e6
    own = text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)\s*=", own)
    for name, value in tables.headline(wafer_result):
        assert name in own
        assert value in own
    assert all(key in own for key in wafer_result.plan.wafer.provenance)


def test_page_is_equal_when_written_twice(small_result: Result) -> None:
    """No date gets into the page."""
    assert html.render(small_result) == html.render(small_result)


def test_page_of_a_misfit_says_what_binds(infeasible: Infeasible, tmp_path: Path) -> None:
    """The page has one sentence with need and limit."""
    text = html.write_report(infeasible, tmp_path / "why.html").read_text()
    assert "does not fit" in text
    assert "41.8 GB" in text


def test_names_cannot_break_the_page(small_result: Result) -> None:
    """A model may be called anything."""
    import dataclasses

    text = html.render(dataclasses.replace(small_result, model="</script><b>x", notes=("<i>",)))
    assert "<b>x" not in text
    assert "<i>" not in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium."""
    with headless(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.slow
def test_page_lives_in_a_browser(page: Path, wafer_result: Result, browser: Any, tmp_path: Path) -> None:
    """Loads without errors and without the network; layers switch, the map zooms, hover is exact, tables sort."""
    from selenium.webdriver.common.action_chains import ActionBuilder
    from selenium.webdriver.common.by import By

    browser.get(f"file://{page}")
    wait(browser, "!!(window.report && window.report.isReady)")
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "requestWillBeSent" in entry["message"]
    ]
    assert not [text for text in requests if re.search(r'"url":"https?:', text)]

    # The first picture does not wait for libraries: under 3 s even on a busy machine.
    painted_ms = wait(
        browser,
        "performance.getEntriesByType('paint').filter(e => e.name === 'first-contentful-paint').map(e => e.startTime)[0]",
    )
    assert painted_ms < 3000

    # Every layer can be switched to, draws other pixels than nothing, and says its unit.
    for button in browser.find_elements(By.CSS_SELECTOR, "#layers button"):
        button.click()
        key = button.get_attribute("data-layer")
        wait(browser, f"report.state.layer.key === '{key}'")
        assert (
            browser.execute_script(
                "const c = document.querySelector('#wafer canvas'); const d = c.getContext('2d')"
                ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size"
            )
            > 4
        ), key

    # Dies and regions can be switched, and the page does not overflow a narrow window or a phone.
    for name in ("show-dies", "show-regions"):
        browser.find_element(By.ID, name).click()
    for width in (800, 390):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        wait(browser, f"document.documentElement.scrollWidth <= {width}")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in re.findall(r"\d+", ground)[:3]) < 64
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.execute_script("report.whole()")

    # Layers: the color bar tells the unit of the chosen one.
    browser.find_element(By.CSS_SELECTOR, "button[data-layer=link_e]").click()
    wait(browser, "document.querySelector('#wafer .colorbar').textContent.includes('wavelets')")

    # Zoom to single cores: as many cells as cores, a level of detail of one.
    assert browser.execute_script("return report.state.window.block") == 3
    row, col = 588, 381
    browser.execute_script(f"return report.zoomTo({row - 20}, {row + 20}, {col - 20}, {col + 20})")
    wait(browser, "report.state.window.block === 1")

    # Hover: the values of the core under the pointer are the arrays of the result.
    browser.execute_script("document.getElementById('map').scrollIntoView()")
    x, y = browser.execute_script(f"return report.pixelOf({row}, {col})")
    actions = ActionBuilder(browser)
    actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    wait(browser, f"document.getElementById('core').dataset.row === '{row}'")
    shown = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('#core dd[data-key]')].map(d => [d.dataset.key, Number(d.dataset.value)]))"
    )
    assert len(shown) == 10
    for key, value in shown.items():
        assert value == float(wafer_result.core_map(key)[row, col]), key

    # What limits the run is named, and its region is the first that the panel describes on a fresh page.
    assert "limited by" in browser.find_element(By.ID, "bottleneck").text
    slowest = max(wafer_result.areas, key=lambda area: area.times_s[0])
    assert browser.execute_script("return report.data.marks.slowest[0]") == slowest.name

    # The wheel zooms by itself.
    before = browser.execute_script("return report.state.window.c1 - report.state.window.c0")
    actions = ActionBuilder(browser)
    actions.wheel_action.scroll(round(x), round(y), 0, 400)
    actions.perform()
    wait(browser, f"report.state.window.c1 - report.state.window.c0 > {before}")

    # Time: a bin of the slider shows the fraction of the bin.
    browser.execute_script("return report.setLayer('busy')")
    browser.execute_script(
        "const s = document.getElementById('time-slider'); s.value = 9; s.dispatchEvent(new Event('input'))"
    )
    assert "simulated time" in browser.find_element(By.ID, "time-value").text

    # Tables: a click on a heading sorts, another turns around.
    head = browser.find_elements(By.CSS_SELECTOR, "#kernel-table th")[4]
    for is_up in (False, True):
        head.click()
        cells = browser.find_elements(By.CSS_SELECTOR, "#kernel-table tbody td:nth-child(5)")
        numbers = [int(cell.get_attribute("data-value")) for cell in cells]
        assert numbers == sorted(numbers, reverse=not is_up)

    kept = Path(os.environ.get("WSE_SIM_SCREENSHOTS", tmp_path))
    kept.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(kept / "report.png"))
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_a_link_opens_the_layer_and_the_region_that_it_names(
    page: Path, wafer_result: Result, browser: Any
) -> None:
    """``#kernel=...&layer=...`` chooses both; a click on another layer changes the address."""
    name = wafer_result.areas[0].name
    browser.get("about:blank")
    browser.get(f"file://{page}#kernel={quote(name)}&layer=link_e")
    wait(browser, "!!(window.report && window.report.isReady)")
    assert browser.execute_script("return [report.state.layer.key, report.state.chosen[0]]") == [
        "link_e",
        name,
    ]
    assert "log scale" in browser.execute_script(
        "return document.querySelector('#wafer .colorbar').textContent"
    )
    browser.execute_script("return report.setLayer('sram')")
    assert browser.execute_script("return location.hash") == f"#kernel={quote(name)}&layer=sram"


def test_rectangles_of_the_treemap_have_the_areas_of_their_times() -> None:
    """By hand for 6, 6, 4, 3, 2, 2, 1 on 6 x 4, the example of the paper: areas are the sizes, nothing overlaps."""
    sizes = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0]
    places = squarified(sizes, 6.0, 4.0)
    assert [round(w * h, 9) for _, _, w, h in places] == sizes
    assert places[0][2:] == places[1][2:] == (3.0, 2.0)
    grid = np.zeros((400, 600), int)
    for x, y, w, h in places:
        grid[round(y * 100) : round((y + h) * 100), round(x * 100) : round((x + w) * 100)] += 1
    assert (grid == 1).mean() > 0.99


@pytest.mark.slow
def test_the_treemap_of_weight_streaming_holds_the_whole_step(streamed: Result) -> None:
    """Areas add up to the picture; the largest kernel has its fraction of the step, and the rest is between kernels."""
    groups = views.fold(streamed.kernels)
    picture = treemap(groups, streamed.step_s)
    sizes = re.findall(r"<title>([^\n]*)\n.*?width='([\d.]+)' height='([\d.]+)'", picture, re.DOTALL)
    areas = {name: float(width) * float(height) for name, width, height in sizes}
    assert sum(areas.values()) == pytest.approx(WIDTH * HEIGHT, rel=1e-3)
    most = max(groups, key=lambda group: group.total_s)
    assert areas[most.name] / (WIDTH * HEIGHT) == pytest.approx(most.total_s / streamed.step_s, rel=1e-3)
    assert areas["between kernels"] / (WIDTH * HEIGHT) == pytest.approx(2 / 33, rel=1e-2)  # 31 ms of 33
    assert picture in html.render(streamed)


MAP_ROWS = """(() => { const c = document.querySelector('#wafer canvas'), g = c.getContext('2d'), d = g.getImageData(0, 0, c.width, c.height).data;
const seen = new Set();
for (let y = 0; y < c.height; y++) for (let x = c.width * 0.3; x < c.width * 0.6; x += 9) {
  const i = 4 * (y * c.width + Math.floor(x));
  if (d[i + 3] && Math.max(d[i], d[i + 1], d[i + 2]) - Math.min(d[i], d[i + 1], d[i + 2]) > 40) { seen.add(y); break; }
} return seen.size / c.height; })()"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1360, 390])
def test_captures_of_the_whole_page_keep_the_map(page: Path, browser: Any, width: int) -> None:
    """A capture makes the page one pixel wide for a moment; afterwards the map once showed only its lower third."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get("about:blank")
    browser.get(f"file://{page}")
    wait(browser, "!!(window.report && window.report.isReady)")
    before = browser.execute_script("return [report.state.window.r0, report.state.window.r1]")
    filled = browser.execute_script(f"return {MAP_ROWS}")
    for _ in range(2):
        browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    wait(browser, f"report.state.window.r1 === {before[1]}")
    assert browser.execute_script("return [report.state.window.r0, report.state.window.r1]") == before
    assert browser.execute_script(f"return {MAP_ROWS}") == pytest.approx(filled, abs=0.02)
    assert filled > 0.5
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_two_results_fit_a_phone(
    wafer_result: Result, streamed: Result, browser: Any, tmp_path: Path
) -> None:
    """390 pixels: tables scroll within their section, the page does not."""
    path = write_difference(diff(wafer_result, streamed), tmp_path)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
    )
    browser.get(f"file://{path}")
    wait(browser, "document.readyState === 'complete'")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert faults(browser) == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
