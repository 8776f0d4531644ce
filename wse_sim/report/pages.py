"""Parts that all pages share: templates and filters, styles and scripts, and data escaped for its HTML element."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from wse_sim.errors import WseError
from wse_sim.report.text import kib, number, percent, seconds, si

if TYPE_CHECKING:
    import jinja2
    import markupsafe


def templates(package: str, page: str) -> jinja2.Environment:
    """Return the templates of a package, with the filters of all pages; the error without jinja2 names
    `page`.

    Raises
    ------
    WseError
        If jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as fault:
        raise WseError(
            f"{page} needs jinja2, which is not installed; pip install 'wse-sim[report]'"
        ) from fault
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"kib": kib, "number": number, "percent": percent, "seconds": seconds, "si": si}
    return environment


def parts_of(package: str, *files: str) -> markupsafe.Markup:
    """Return the files of a package's templates, concatenated without changes."""
    import markupsafe

    folder = resources.files(package).joinpath("templates")
    return markupsafe.Markup("".join(folder.joinpath(file).read_text(encoding="utf-8") for file in files))


def as_json(data: Mapping[str, Any]) -> markupsafe.Markup:
    """Return data escaped for a script element: "</script>" in a string would end it, and "<!--<script>" keep
    it open."""
    import markupsafe

    text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str).replace("<", "\\u003c")
    return markupsafe.Markup(text)
