"""Provenance of a run: versions, a hash of the package's sources, and the machine."""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from wse_sim._version import __version__

WITHOUT_INFLUENCE = ("cli", "cstorch", "csl", "bench", "validation", "report")
"""Folders of the package whose sources change no number of a run."""
OF_STUDIES = ("evaluate.py", "quantities.py", "settings.py")
"""Sources of this folder that do."""


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a hash of the sources and configurations on which the numbers of a run depend."""
    package = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for root in [package, *(entry for entry in sorted(package.iterdir()) if entry.is_symlink())]:
        where = root.resolve()
        for file in sorted(where.rglob("*")):
            if file.suffix not in {".py", ".yaml"} or not file.is_file():
                continue
            parts = file.relative_to(where).parts
            if root == package and parts[0] in WITHOUT_INFLUENCE:
                continue
            if root == package and parts[0] == "studies" and file.name not in OF_STUDIES:
                continue
            total.update(str(Path(root.name, *parts)).encode())
            total.update(file.read_bytes())
    return total.hexdigest()[:32]


@lru_cache(maxsize=1)
def torch_version() -> str:
    """Return the version of torch, which captures models, without loading it; "" if it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def provenance() -> dict[str, Any]:
    """Return the provenance of rows, as it is stored."""
    return {
        "wse_sim": __version__,
        "code": code_digest(),
        "python": platform.python_version(),
        "torch": torch_version(),
        "numpy": metadata.version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "byte_order": sys.byteorder,
    }
