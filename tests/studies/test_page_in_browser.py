"""The page of a study in a real browser: filters, tooltips, a click, the link to a report, dark style, and on a phone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.browser import faults, headless, wait
from tests.studies import tasks
from tests.studies.test_runner import study
from wse_sim.studies import pool as pools
from wse_sim.studies.data import shown
from wse_sim.studies.folder import Folder
from wse_sim.studies.page import write_page
from wse_sim.studies.runner import run_study
from wse_sim.studies.store import Store

SPOTS = """(() => { const c = document.querySelector('#chart canvas'), b = c.getBoundingClientRect(), out = [];
for (let y = 1; y < b.height; y += 7) for (let x = 1; x < b.width; x += 7) {
  c.dispatchEvent(new MouseEvent('mousemove', {clientX: b.left + x, clientY: b.top + y, bubbles: true}));
  const tip = document.querySelector('#chart .tip');
  if (!tip.hidden) out.push([x, y, tip.textContent]);
} return out; })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Make a study of 12 runs, half of which do not fit; run 1 has a report."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "capture", tasks.capture)
        spec = study(
            grid={"batch": [8, 32, 128], "optimizer": ["sgd", "adamw"], "wafer.sram_bytes": [4200, 49152]},
            outputs=["samples_per_s", "sample_joules"], draws=2,
        )  # fmt: skip
        run_study(spec, folder, workers=0)
    report = folder / "runs" / "1" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<title>the report of run 1</title>", encoding="utf-8")
    opened, number, name = Folder.opened(folder)
    with Store(opened.store) as store:
        read = shown(store, number, name)
    return write_page(read, folder), read


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with headless(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def rows_of_table(browser):
    script = "return [...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    return browser.execute_script(script)


@pytest.mark.slow
def test_a_reader_filters_points_and_opens_a_run(page, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    path, read = page
    browser.get(f"file://{path}")
    wait(browser, "document.querySelectorAll('#table tbody tr').length === 12")
    assert faults(browser) == []

    # Filters leave what they say, in table and chart.
    boxes = {
        box.text.split()[0]: box
        for box in browser.find_elements(By.CSS_SELECTOR, "#filters label")
        if box.text
    }
    optimizer = Select(boxes["optimizer"].find_element(By.TAG_NAME, "select"))
    optimizer.select_by_visible_text("adamw")
    assert len(rows_of_table(browser)) == 6
    boxes["only"].find_element(By.TAG_NAME, "input").click()
    left = rows_of_table(browser)
    assert [row[0] for row in left] == [
        str(row["number"]) for row in read.done if row["parameters"]["optimizer"] == "adamw"
    ]
    assert all("done" in row for row in left)
    seen = {text for _, _, text in browser.execute_script(f"return {SPOTS}")}
    assert seen
    assert all("optimizer: adamw" in text for text in seen)
    optimizer.select_by_visible_text("all")

    # Hover says configuration, value and interval of the run under the pointer; a click keeps it and links its report.
    wanted = read.rows[1]
    value = wanted["outputs"]["samples_per_s"]
    mark = [f"batch: {wanted['parameters']['batch']}", f"optimizer: {wanted['parameters']['optimizer']}"]
    spots = [
        s for s in browser.execute_script(f"return {SPOTS}") if all(line in s[2].split("\n") for line in mark)
    ]
    x, y = np.array([s[:2] for s in spots]).mean(axis=0)
    shown_value = spots[0][2].split("samples_per_s: ")[1].split(" ")[0].replace(",", "")
    assert float(shown_value) == pytest.approx(value, rel=1e-4)
    canvas = browser.find_element(By.CSS_SELECTOR, "#chart canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    width, height = canvas.size["width"], canvas.size["height"]
    ActionChains(browser).move_to_element_with_offset(canvas, x - width / 2, y - height / 2).click().perform()
    inspector = browser.find_element(By.ID, "inspector")
    assert inspector.text.startswith("Run 1")
    for name, stated in wanted["parameters"].items():
        assert name in inspector.text
        assert (f"{stated:,}" if isinstance(stated, int) else str(stated)) in inspector.text
    link = inspector.find_element(By.TAG_NAME, "a")
    assert link.text == "open its report"
    link.click()
    wait(browser, "document.title === 'the report of run 1'")
    browser.back()
    wait(browser, "document.querySelectorAll('#table tbody tr').length === 12")

    # The chosen run is one click away; a run without a report states how to get it; arrow keys continue.
    browser.find_element(By.ID, "show-chosen").click()
    inspector = browser.find_element(By.ID, "inspector")
    assert "beaten by no other" in inspector.text
    assert "wse-sim study result" in inspector.text
    before = inspector.text.splitlines()[0]
    browser.find_element(By.CSS_SELECTOR, "#chart canvas").send_keys("\ue014")
    assert browser.find_element(By.ID, "inspector").text.splitlines()[0] != before
    for kind in ("map", "axes", "points"):
        browser.find_element(By.CSS_SELECTOR, f"[data-kind={kind}]").click()
        assert browser.execute_script(f"return {SPOTS}"), kind
    assert faults(browser) == []


def colours(browser):
    return browser.execute_script(
        "const s = getComputedStyle(document.body), c = document.querySelector('#chart canvas');"
        "return [s.backgroundColor, s.color, c.toDataURL()]"
    )


def lightness(colour):
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 765


def test_light_and_dark_and_a_phone(page, browser):
    path, _ = page
    browser.get(f"file://{path}")
    pictures = []
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        wait(browser, f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        back, ink, picture = colours(browser)
        end = time.monotonic() + 20
        while (
            pictures and picture == pictures[0] and time.monotonic() < end
        ):  # the chart is drawn a little later
            time.sleep(0.1)
            back, ink, picture = colours(browser)
        assert (lightness(back) > lightness(ink)) == (scheme == "light")
        assert abs(lightness(back) - lightness(ink)) > 0.5
        pictures.append(picture)
    assert pictures[0] != pictures[1]  # the chart follows
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    browser.get(f"file://{path}")
    wait(browser, "innerWidth <= 400")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 392
    assert (
        browser.execute_script("return document.querySelector('#chart canvas').getBoundingClientRect().width")
        > 250
    )
    assert faults(browser) == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_rings_follow_the_axes_and_rows_link_their_reports(page, browser):
    """The rings are the Pareto front of the two outputs shown, computed here over all pairs."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    path, read = page
    browser.get(f"file://{path}")
    wait(browser, "document.querySelectorAll('#table tbody tr').length === 12")
    browser.execute_script(
        "const arc = CanvasRenderingContext2D.prototype.arc;"
        "window.rings = [];"
        "CanvasRenderingContext2D.prototype.stroke = function () { if (this.lastArc) window.rings.push(this.lastArc); };"
        "CanvasRenderingContext2D.prototype.beginPath = function () { this.lastArc = null; };"
        "CanvasRenderingContext2D.prototype.arc = function (x, y, r) { this.lastArc = [x, y]; };"
    )
    directions = {"samples_per_s": 1, "sample_joules": -1, "step_s": -1}
    for across, up in (
        ("sample_joules", "samples_per_s"),
        ("batch", "samples_per_s"),
        ("step_s", "samples_per_s"),
    ):
        Select(browser.find_element(By.ID, "x")).select_by_value(across)
        Select(browser.find_element(By.ID, "y")).select_by_value(up)
        browser.execute_script("window.rings = []; dispatchEvent(new Event('resize'))")
        names = [name for name in (across, up) if name in directions]
        points = [tuple(directions[name] * row["outputs"][name] for name in names) for row in read.done]
        unbeaten = [
            p
            for p in points
            if not any(q != p and all(a >= b for a, b in zip(q, p, strict=True)) for q in points)
        ]
        assert len(browser.execute_script("return window.rings")) == len(unbeaten), (across, up)
        hint = browser.find_element(By.ID, "hint").text
        assert hint.count("more samples_per_s (samples/s)") == 1
    links = browser.find_elements(By.CSS_SELECTOR, "#table tbody a")
    assert [link.text for link in links] == ["open"]
    assert faults(browser) == []
