"""Command files that name the tools of the SDK by a path of their author's machine: the command of that name here runs instead."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

_PATHS = re.compile(r"(?<![\w$./}-])((?:~|\$HOME|\$\{HOME\})?(?:/[\w.+-]+)+/(cslc|cs_python))(?![\w./-])")

INSTEAD = "of wse_sim runs instead"
"""End of the note that a shell prints for such a path."""


def absent_paths(text: str) -> dict[str, str]:
    """Paths of `cslc` and `cs_python` in a command file that lead to no file of this machine, with the tool of each.

    >>> absent_paths("/home/me/sdk/cslc layout.csl && cs_python run.py")
    {'/home/me/sdk/cslc': 'cslc'}
    """
    found = {os.path.expanduser(os.path.expandvars(path)): name for path, name in _PATHS.findall(text)}
    return {path: name for path, name in found.items() if not os.path.exists(path)}


def shell_start(paths: dict[str, str], folder: Path) -> Path:
    """A file that a shell reads first (BASH_ENV): a function per path, which says once that another command runs."""
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
