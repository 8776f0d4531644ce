"""The one place where files of users are read and output paths are claimed.

A file that cannot be read, is not text, is no YAML or JSON, or is too large is refused in one sentence before any
work starts.  An output folder is made, and tried, before any work starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from wse_sim.errors import ConfigError, WseError

JSON = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
"""Plain data, as in a JSON document."""

Values = dict[str, Any]
"""Values by name, as a document states them and before they are checked."""

MAX_TEXT_BYTES = 64 * 2**20
"""Largest text file that is read: 64 MiB, some thousand times the largest configuration known."""

MAX_REPEATED = 10_000
"""Largest number of values that the aliases of one YAML file may expand to in total."""

MAX_DEPTH = 100
"""Deepest nesting of a YAML file, far below Python's recursion limit."""

# YAML 1.1 asks a number with an exponent for a point and a sign; in YAML 1.2, in JSON and to people 5e-05 is one as it is.
_LOADER: type[yaml.SafeLoader] = type("Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
_LOADER.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def looked_at(
    path: str | Path, noun: str = "path", fault: type[WseError] = ConfigError
) -> os.stat_result | None:
    """The `stat` result of a path, following links; None if nothing exists there.

    Raises
    ------
    WseError
        Of class `fault`: the system cannot even look, as a name is too long, holds a null byte, links form a
        circle, or a folder above may not be entered.
    """
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise fault(f"{noun} {_shown(path)} cannot be used ({_why(error)}); give another path") from None


def is_file(path: str | Path, noun: str = "path", fault: type[WseError] = ConfigError) -> bool:
    """Whether a regular file is there; refuses as :func:`looked_at` does."""
    status = looked_at(path, noun, fault)
    return status is not None and stat.S_ISREG(status.st_mode)


def is_folder(path: str | Path, noun: str = "path", fault: type[WseError] = ConfigError) -> bool:
    """Whether a folder is there; refuses as :func:`looked_at` does."""
    status = looked_at(path, noun, fault)
    return status is not None and stat.S_ISDIR(status.st_mode)


def exists(path: str | Path, noun: str = "path", fault: type[WseError] = ConfigError) -> bool:
    """Whether anything is there; refuses as :func:`looked_at` does."""
    return looked_at(path, noun, fault) is not None


def refusal(error: OSError) -> str:
    """A sentence about a file operation that the system refused; "" if the error names no file."""
    if error.filename is None:
        return ""
    named = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    return f"{_shown(named)} cannot be used ({_why(error)}); check the path and its permissions"


def read_text(path: str | Path, noun: str = "file", fault: type[WseError] = ConfigError) -> str:
    """Text of a file in UTF-8, a byte order mark removed.

    Raises
    ------
    WseError
        Of class `fault`: the file is missing, a folder, a device, unreadable, no text, or over 64 MiB.
    """
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise fault(f"{noun} {_shown(path)} is {what}; give a path to a file")
        if status.st_size > MAX_TEXT_BYTES:
            raise fault(
                f"{noun} {_shown(path)} has {status.st_size:,} bytes, the limit is {MAX_TEXT_BYTES:,}; is it the right file?"
            )
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(
            f"{noun} {_shown(path)} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise fault(f"{noun} {_shown(path)} cannot be read ({_why(error)}); check the path") from None


def read_log(path: str | Path, noun: str = "log", fault: type[WseError] = ConfigError) -> str:
    """Text of a log that a terminal wrote: broken bytes become marks, UTF-16 with a byte order mark is read as well.

    Raises
    ------
    WseError
        Of class `fault`: the file is missing, a folder, unreadable, no text at all, or over 64 MiB.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise fault(
                f"{noun} {_shown(path)} has {size:,} bytes, the limit is {MAX_TEXT_BYTES:,}; keep only these lines: "
                "grep -E 'Device=|Beginning|Saving|batch size|CSX|Processed' LOG"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise fault(f"{noun} {_shown(path)} cannot be read ({_why(error)}); check the path") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:4096]:
        raise fault(f"{noun} {_shown(path)} holds null bytes, so it is not text; save the log as UTF-8")
    return data.decode("utf-8-sig", "replace")


def sha256_of(path: str | Path, noun: str = "file", fault: type[WseError] = ConfigError) -> str:
    """Hash of a file's bytes, as hexadecimal digits.

    Raises
    ------
    WseError
        Of class `fault`: the file cannot be read.
    """
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        raise fault(f"{noun} {_shown(path)} cannot be read ({_why(error)}); check the path") from None


def read_yaml(path: str | Path, noun: str = "file") -> Values:
    """Read a YAML mapping.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, is nested too deeply, or is not a mapping.
    """
    return parse_yaml(read_text(path, noun), path)


def parse_yaml(text: str, path: str | Path) -> Values:
    """Return the YAML mapping of a text; `path` names its source in messages.

    Example
    -------
    >>> parse_yaml("{replicas: 2, placer: peel}", "--mode-options")
    {'replicas': 2, 'placer': 'peel'}

    Raises
    ------
    ConfigError
        If it is not YAML, is nested too deeply, has a key twice, or is not a mapping.
    """
    try:
        _check_size(text, path)
        data = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path}: is not YAML ({' '.join(str(error).split())[:200]}); correct the syntax"
        ) from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be read; flatten it") from None
    except ValueError as error:  # a date that does not exist, an integer number of more than 4,300 digits
        raise ConfigError(f"{path}: holds a value that cannot be read ({error}); correct it") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds a {type(data).__name__}, a mapping of keys is needed")
    odd = next((key for key in data if not isinstance(key, str)), None)
    if odd is not None:
        raise ConfigError(f"{path}: key {odd!r} is not text; name keys by words")
    return data


def _check_size(text: str, path: str | Path) -> None:
    """Refuse YAML that is deep, or that aliases make large: 430 bytes can stand for 10^8 values."""
    keys: list[dict[str, int] | None] = []  # of each collection around: lines of its keys; None for a list
    due: list[bool] = []  # whether its next node is a key
    sizes: dict[str | None, int] = {}  # nodes that an anchor stands for, its own aliases written out
    open_: list[tuple[str | None, int]] = []  # anchor of each collection around, and the nodes before it
    count = repeated = 0
    for event in yaml.parse(text, Loader=_LOADER):
        _check_once(event, keys, due, path)
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in open_):
                raise ConfigError(f"{path}: alias '*{event.anchor}' refers to itself; write the values out")
            count += sizes.get(event.anchor, 0)
            repeated += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, count - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if repeated > MAX_REPEATED:
            raise ConfigError(
                f"{path}: its aliases expand to more than {MAX_REPEATED:,} values; write the values out"
            )
        if len(open_) > MAX_DEPTH:
            raise ConfigError(
                f"{path}: is nested more than {MAX_DEPTH} deep, too deeply to be read; flatten it"
            )


def _check_once(
    event: yaml.Event, keys: list[dict[str, int] | None], due: list[bool], path: str | Path
) -> None:
    """Refuse a key that a mapping has twice (the last one would count), and numbers in other spellings than one's own."""
    if isinstance(event, yaml.CollectionEndEvent):
        keys.pop()
        due.pop()
        return
    if not isinstance(event, yaml.NodeEvent):
        return
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
        _check_number(event.value, line, path)
    if keys and keys[-1] is not None:
        if due[-1] and isinstance(event, yaml.ScalarEvent):
            if event.value in keys[-1]:
                raise ConfigError(
                    f"{path}: key '{event.value[:80]}' is given twice, in lines {keys[-1][event.value]} and {line}; keep one"
                )
            keys[-1][event.value] = line
        due[-1] = not due[-1]
    if isinstance(event, yaml.CollectionStartEvent):
        keys.append({} if isinstance(event, yaml.MappingStartEvent) else None)
        due.append(True)


_ODD_NUMBER = re.compile(r"[-+]?0[0-9]|.*[_:]")
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_RESOLVER = yaml.resolver.Resolver()


def _check_number(value: str, line: int, path: str | Path) -> None:
    """YAML reads 1_0 as 10, 0100 as 64 and 1:30 as 90: its author meant something else."""
    if _ODD_NUMBER.match(value) and _RESOLVER.resolve(yaml.ScalarNode, value, (True, False)) in _NUMBER_TAGS:
        raise ConfigError(
            f"{path}: '{value[:80]}' in line {line} is not a number; write it with the digits 0 to 9 "
            "alone, or put a text into quotes"
        )


def is_plain_number(text: str) -> bool:
    """Whether a number is spelled as numbers are: Python also takes `1_0`, Arabic digits, and digits of double width."""
    return text.isascii() and "_" not in text


def csv_cell(value: object) -> object:
    """A value for a table that spreadsheets open: a text that they would take for a formula gets a quote before it."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )


class TwiceError(ValueError):
    """A key that an object of JSON has twice."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose keys differ (``object_pairs_hook`` of ``json.loads``, which keeps the last one).

    Raises
    ------
    TwiceError
        If a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TwiceError(f"key '{twice[:80]}' is given twice in one object")
    return found


def read_json(path: str | Path, noun: str = "file", fault: type[WseError] = ConfigError) -> Any:
    """Read a JSON document.

    Raises
    ------
    WseError
        Of class `fault`: the file cannot be read or is not JSON.
    """
    text = read_text(path, noun, fault)
    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise fault(f"{path}: is nested too deeply to be read; flatten it") from None
    except TwiceError as error:
        raise fault(f"{path}: {error}; keep one of them") from None
    except ValueError as error:
        raise fault(f"{path}: is not JSON ({error}); correct the syntax") from None


def claim_folder(path: str | Path, option: str = "--out") -> Path:
    """Create a folder for results and test that it is writable; existing content is kept.

    Raises
    ------
    WseError
        If it cannot be made or written.
    """
    path = Path(path)
    try:
        _make(path)
        probe = path / f".wse-sim-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        why = "it is a file" if isinstance(error, FileExistsError) else _why(error)
        raise WseError(f"{option} {_shown(path)} cannot be a folder ({why}); name another folder") from None
    return path


def claim_file(path: str | Path, option: str = "--out") -> Path:
    """Make the folder of a file and try that the file can be written; a file that is there stays as it is.

    Raises
    ------
    WseError
        If it cannot be written, or is a folder or a device.
    """
    path = Path(path)
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise WseError(f"{option} {_shown(path)} is not a regular file; name a file")
        _make(path.parent)
        there = path.exists()
        path.open("ab").close()
        if not there:
            path.unlink()
    except (OSError, ValueError) as error:
        raise WseError(
            f"{option} {_shown(path)} cannot be written ({_why(error)}); name another file"
        ) from None
    return path


_MADE: list[Path] = []
"""Folders that claims of this command made, outer ones first."""


def _make(path: Path) -> None:
    """Create a folder with its parents, and record those that were created."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    _MADE.extend(reversed(missing))


def drop_claims() -> None:
    """At the end of a command, remove the folders that it claimed and left empty."""
    while _MADE:
        try:
            _MADE.pop().rmdir()
        except OSError:
            continue  # it holds something, or is gone


def _why(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _shown(path: str | Path) -> str:
    """A path for a message; a very long one is cut in the middle, and what a screen cannot show is escaped."""
    text = str(path).replace("\0", "\\0")
    return text if len(text) <= 120 else f"{text[:60]}...{text[-50:]}"


CACHE = "WSE_SIM_CACHE"
NOWHERE = "none"  # its value for: keep nothing on disk


def cache_folder() -> Path:
    """The user's folder for caches: ``$WSE_SIM_CACHE``, else where the system keeps such files."""
    from platformdirs import user_cache_path

    named = os.environ.get(CACHE)
    return Path(named) if named else user_cache_path("wse_sim", appauthor=False)
