"""Replacement of absolute paths to the vendor's tools in command files.

A command file may name ``cslc`` or ``cs_python`` by a path that exists only on its author's machine. The
command of the same name of this package runs instead.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

_PATHS = re.compile(r"(?<![\w$./}-])((?:~|\$HOME|\$\{HOME\})?(?:/[\w.+-]+)+/(cslc|cs_python))(?![\w./-])")

INSTEAD = "of wse_sim runs instead"
"""End of the note that the shell prints for such a path."""


def absent_paths(text: str) -> dict[str, str]:
    """Return the paths of `cslc` and `cs_python` in a command file that do not exist on this machine, each
    with the name of its tool.

    >>> absent_paths("/home/me/sdk/cslc layout.csl && cs_python run.py")
    {'/home/me/sdk/cslc': 'cslc'}
    """
    found = {os.path.expanduser(os.path.expandvars(path)): name for path, name in _PATHS.findall(text)}
    return {path: name for path, name in found.items() if not os.path.exists(path)}


def shell_start(paths: dict[str, str], folder: Path) -> Path:
    """Write a start-up file for a shell (``BASH_ENV``) and return its path.

    It defines a function for each path, which runs the tool of `folder` and prints a note at its first call.
    """
    lines = ['[ -z "$WSE_SIM_BASH_ENV" ] || . "$WSE_SIM_BASH_ENV"']
    for path, name in paths.items():
        told = f"wse-sim: there is no {path} on this machine; {name} {INSTEAD}"
        mark = shlex.quote(str(folder / f"told_{name}"))
        lines.append(
            f'function {path} {{ [ -e {mark} ] || echo {shlex.quote(told)} >&2; : > {mark}; {shlex.quote(str(folder / name))} "$@"; }}'
        )
    start = folder / "bash_env"
    start.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return start
