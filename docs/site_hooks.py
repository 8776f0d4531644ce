"""Hooks of the documentation site."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
NOTEBOOK = "examples/ten_minutes.ipynb"
LIMIT_S = 300


def on_files(files, config):
    """The notebook is executed, and its page and pictures join the files of the site."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "docs/notebook.py", NOTEBOOK, folder]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=LIMIT_S)
        for path in sorted(Path(folder).iterdir()):
            name = "notebook.md" if path.name == "page.md" else path.name
            files.append(File.generated(config, name, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page, **_: object) -> str:
    """Links that hold in the repository lead to pages of the site."""
    if page.file.src_path == "changelog.md":
        return markdown.replace("](docs/", "](")
    return markdown.replace(f"`{NOTEBOOK}`", f"[{NOTEBOOK}](notebook.md)")


def on_post_build(config) -> None:
    """A page that was opened as a file cannot read the search index; it can run a script that holds it."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(
        f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8"
    )
