"""Audit of the built site: links, alternative texts, headings, names of controls, contrast of text."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import headless, wait

ROOT = Path(__file__).parents[2]
BUILD_S = 400
LEAST_CONTRAST = 4.5  # of text of usual size, WCAG 2.1 AA


class Page(HTMLParser):
    """The content of a page: links, ids, pictures, headings, controls without a name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.language, self.title = "", ""
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.faults: list[str] = []
        self.headings: list[int] = []
        self._open: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.add(str(given["id"]))
        if tag == "html":
            self.language = given.get("lang") or ""
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "img" and not given.get("alt"):
            self.faults.append(f"picture without a text: {given.get('src')}")
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.headings.append(int(tag[1]))
        if tag in ("a", "button", "title"):
            self._open.append((tag, given, ""))

    def handle_data(self, data):
        self._open = [(tag, given, text + data) for tag, given, text in self._open]

    def handle_endtag(self, tag):
        if self._open and self._open[-1][0] == tag:
            _, given, text = self._open.pop()
            named = text.strip() or given.get("aria-label") or given.get("title")
            if tag == "title":
                self.title = text.strip()
            elif (
                not named
                and given.get("aria-hidden") != "true"
                and given.get("href") != "#"
                and "hidden" not in given
            ):
                self.faults.append(f"{tag} without a name: {given}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make site`` does: warnings are errors."""
    pytest.importorskip("mkdocs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    subprocess.run(
        command, cwd=ROOT, check=True, timeout=BUILD_S, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_every_link_within_the_site_leads_to_a_page_and_a_place(site, pages):
    """Files exist; a fragment is the id of an element there."""
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the root of the server
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                broken.append(f"{path.relative_to(site)}: {link} (no such place)")
    assert len(pages) > 30
    assert broken == []


@pytest.mark.slow
def test_pages_have_languages_titles_headings_and_named_controls(site, pages):
    """A page has one first heading, no skipped level, a text for every picture, and a name for every link and button."""
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site)
        faults += [f"{name}: {fault}" for fault in page.faults]
        if page.language != "en" or not page.title:
            faults.append(f"{name}: language '{page.language}', title '{page.title}'")
        if path.name == "404.html":
            continue
        if page.headings.count(1) != 1:
            faults.append(f"{name}: {page.headings.count(1)} first headings")
        jumps = [b for a, b in zip(page.headings, page.headings[1:], strict=False) if b > a + 1]
        if jumps:
            faults.append(f"{name}: a heading of level {jumps[0]} without one above it")
    assert faults == []
    titles = [page.title for path, page in pages.items() if path.name != "404.html"]
    assert len(set(titles)) == len(titles)


@pytest.mark.slow
def test_nothing_is_asked_of_the_network(pages):
    """Scripts, styles and pictures are files of the site."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not [part for part in ('src="http', 'rel="stylesheet" href="http') if part in text], path


CONTRAST = """
const least = arguments[0], found = [];
const parts = (c) => c.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const over = (top, under) => { const a = top[3] === undefined ? 1 : top[3]; return [0, 1, 2].map((i) => top[i] * a + under[i] * (1 - a)); };
function ground(element) {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parts(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, top) => top.length === 4 && top[3] === 0 ? under : over(top, under), [255, 255, 255]);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
  if (!text || !element.getClientRects().length || element.closest(".headerlink, script, style")) continue;
  const back = ground(element), ink = over(parts(getComputedStyle(element).color), back);
  const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  if (ratio < least) found.push(ratio.toFixed(2) + ": " + text.slice(0, 40) + " <" + element.tagName + " " + element.className + ">");
}
return [...new Set(found)];
"""


@pytest.mark.slow
def test_text_stands_out_in_light_and_dark(site, pages, tmp_path):
    """Every text of a page has a contrast of 4.5 to 1, with colors as a browser computes them."""
    found = {}
    with headless(tmp_path) as browser:
        for name in sorted(str(path.relative_to(site)) for path in pages if path.name != "404.html"):
            browser.get(f"file://{site / name}")
            wait(browser, "document.readyState === 'complete' && !!document.querySelector('article')")
            browser.execute_script(
                "document.head.insertAdjacentHTML('beforeend', '<style>* { transition: none !important; }</style>')"
            )
            for scheme in ("default", "slate"):
                browser.execute_script(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
                found[scheme, name] = browser.execute_script(CONTRAST, LEAST_CONTRAST)
    assert {place: texts for place, texts in found.items() if texts} == {}


SOUGHT = {
    "install": "install.html",
    "own wafer": "howto/own-wafer.html",
    "write a placer": "howto/own-placer.html",
    "pareto": "howto/pareto.html",
    "write a mode": "howto/own-mode.html",
    "write an executor": "howto/own-executor.html",
    "slurm": "howto/cluster.html",
}


@pytest.mark.slow
def test_search_finds_pages_without_a_server(site, tmp_path):
    """The site is opened as files; the first result of a newcomer's words is the page."""
    found = {}
    with headless(tmp_path) as browser:
        for words in SOUGHT:
            browser.get(f"file://{site / 'index.html'}")
            wait(
                browser, "document.readyState === 'complete' && !!document.querySelector('.md-search__input')"
            )
            box = browser.find_element("css selector", ".md-search__input")
            box.click()
            box.send_keys(words)
            wait(browser, "!!document.querySelector('.md-search-result__link')")
            links = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
            found[words] = browser.execute_script(f"return {links}")
    assert {words: links[0] for words, links in found.items() if f"/{SOUGHT[words]}?" not in links[0]} == {}
