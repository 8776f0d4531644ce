"""Creates links and folders as trainers do."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["create_symlink", "get_path_size", "short_temp_dir"]

from wse_sim.cstorch.appliance.utils import short_temp_dir


def create_symlink(
    src_path: str | os.PathLike[str], dst_path: str | os.PathLike[str], target_is_directory: bool = False
) -> None:
    """Make `src_path` a link that leads to `dst_path`; a link of that name is replaced, as a file is not.

    A relative `dst_path` counts from the link's folder, as always with links.

    Raises
    ------
    FileExistsError
        If the name exists and is not a link.
    """
    link = Path(src_path)
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    if link.exists() and not link.is_symlink():
        raise FileExistsError(f"{link} is not a link and is left unchanged")
    fresh.symlink_to(dst_path, target_is_directory=target_is_directory)
    fresh.replace(link)


def get_path_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    at = Path(path)
    if at.is_file():
        return at.stat().st_size
    return sum(f.stat().st_size for f in at.rglob("*") if f.is_file())
