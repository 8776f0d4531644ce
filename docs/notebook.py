"""A notebook as a page: every cell is executed by IPython, in order, and shown with what it prints, draws and returns.

    python docs/notebook.py examples/ten_minutes.ipynb build/page     writes build/page/page.md and its pictures

Cells run in an empty folder.  A cell that raises ends the command with status 1, so a page never shows a broken notebook.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import matplotlib as mpl
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib_inline.backend_inline import configure_inline_support
from traitlets.config import Config

INLINE = "module://matplotlib_inline.backend_inline"


class Kept(DisplayHook):
    """Values of cells are kept in every form that they have, instead of being printed."""

    values: ClassVar[list[Mapping[str, Any]]] = []

    def write_output_prompt(self) -> None:
        """No number before the value."""

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: object = None) -> None:
        """Keep the forms of one value."""
        self.values.append(format_dict)


class Shell(InteractiveShell):
    """IPython without a terminal."""

    displayhook_class = Kept


def main(arguments: list[str]) -> int:
    """Execute the notebook and write the page."""
    notebook, out = (Path(word).resolve() for word in arguments)
    out.mkdir(parents=True, exist_ok=True)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shell = started()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            parts = [part for number, cell in enumerate(cells) for part in page_of(shell, cell, number, out)]
        finally:
            os.chdir(out)
    (out / "page.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return 0


def started() -> Shell:
    """IPython without history or a user's configuration; figures are drawn as in a notebook."""
    config = Config()
    config.HistoryManager.enabled = False
    shell: Shell = Shell.instance(config=config)
    mpl.use(INLINE)
    configure_inline_support(shell, INLINE)
    shell.display_formatter.active_types = ["text/plain", "text/html", "image/png"]
    sys.path.insert(0, "")  # modules that a cell writes
    return shell


def page_of(shell: Shell, cell: Mapping[str, Any], number: int, out: Path) -> Iterator[str]:
    """Blocks of Markdown of one cell; its pictures are written into `out`."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source.replace("](../docs/", "](")
        return
    yield f"```python\n{source}\n```"
    Kept.values.clear()
    with capture_output() as captured:
        ran = shell.run_cell(source)
    if not ran.success:
        raise SystemExit(f"cell {number} failed:\n{source}\n{captured.stdout}\n{captured.stderr}")
    if captured.stdout.strip():
        yield f"```text\n{captured.stdout.strip()}\n```"
    shown = [*Kept.values, *(output.data for output in captured.outputs)]
    for place, data in enumerate(shown):
        yield richest(data, out / f"cell_{number}_{place}.png")


def richest(data: Mapping[str, Any], picture: Path) -> str:
    """The best form of a value that a page can show: a picture, HTML or text."""
    if "image/png" in data:
        png = data["image/png"]
        picture.write_bytes(base64.b64decode(png) if isinstance(png, str) else png)
        return f"![What the cell above draws]({picture.name})"
    if "text/html" in data:  # a blank line would end the block of HTML
        lines = (line.strip() for line in data["text/html"].splitlines())
        return '<div class="cell-output">' + "\n".join(line for line in lines if line) + "</div>"
    return f"```text\n{data['text/plain']}\n```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
