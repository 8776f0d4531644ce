"""Files of users: reading any path returns its content or raises one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.errors import ConfigError, WseError
from wse_sim.files import MAX_TEXT_BYTES, claim_file, claim_folder, read_json, read_text, read_yaml


def test_text_is_read_without_its_byte_order_mark(tmp_path: Path):
    """Editors of some systems write a mark at the beginning, which is not a part of the text."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_text(tmp_path / "a") == "name: x\n"
    assert read_yaml(tmp_path / "a") == {"name": "x"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe\x00a", "not text in UTF-8"),
        (b"a: [1, 2", "is not YAML"),
        (b"[" * 20000, "YAML"),
        (b"- 1\n", "a mapping of keys is needed"),
        (b"", "a mapping of keys is needed"),
        (b"1: 2\n", "key 1 is not text"),
        (b"day: 2026-13-45\n", "cannot be read"),
        (b"n: " + b"9" * 5000, "cannot be read"),
        (b"a: !!python/object/apply:os.system [x]\n", "is not YAML"),
    ],
)
def test_what_is_no_yaml_mapping_is_one_sentence(tmp_path: Path, content: bytes, says: str):
    """Binary, truncated, nested, impossible values, code: each raises a ConfigError of one line with the path."""
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as fault:
        read_yaml(path)
    assert says in str(fault.value) or "nested" in str(fault.value)
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)


@examples(150)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_mapping_or_a_sentence(tmp_path_factory, content: bytes):
    """Random files never raise anything but a ConfigError."""
    path = tmp_path_factory.mktemp("any") / "f.yaml"
    path.write_bytes(content)
    for read in (read_yaml, read_json):
        try:
            said = str(read(path))
        except ConfigError as fault:
            said = str(fault).replace("\n", "a second line")
        assert "a second line" not in said


def test_places_that_are_no_files_are_named(tmp_path: Path):
    """A folder, nothing, a device, a name that is too long, and a null byte are named."""
    for path, says in [
        (tmp_path, "is a folder"),
        (tmp_path / "none", "cannot be read"),
        ("/dev/zero", "is not a regular file"),
        (tmp_path / ("x" * 300), "cannot be read"),
        ("a\0b", "cannot be read"),
    ]:
        with pytest.raises(ConfigError) as fault:
            read_text(path)
        assert says in str(fault.value)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    with pytest.raises(ConfigError, match="the limit is"):
        read_text(large)


def test_outputs_are_claimed_before_the_work(tmp_path: Path):
    """A folder is made and is writable; a path that cannot be a folder or a file is refused without a trace."""
    assert claim_folder(tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/dev/null", tmp_path / ("x" * 300), "a\0b"):
        with pytest.raises(WseError, match="--out"):
            claim_folder(path)
    claim_file(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
    claim_file(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for path in (tmp_path, "/dev/null", tmp_path / "file" / "x"):
        with pytest.raises(WseError):
            claim_file(path)
