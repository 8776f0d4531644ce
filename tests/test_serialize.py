"""Damaged saved results: whatever the damage to the two files, loading ends in one sentence."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import SerializationError
from wse_sim.serialize import SCHEMA, load, same, save


def answer(folder: Path) -> Infeasible:
    """Return a small result, saved with an array beside it."""
    value = Infeasible("pipelined", "m", "sram", 2.0, 1.0, "bytes", where="w", remedy="r")
    save(value, folder, "result")
    return value


def refused(folder: Path) -> str:
    """Return the sentence with which a folder is refused."""
    with pytest.raises(SerializationError) as fault:
        load(folder, "result")
    assert "\n" not in str(fault.value)
    return str(fault.value)


def test_a_round_trip_is_equal(tmp_path: Path):
    """The value that is read equals the written one."""
    value = answer(tmp_path)
    assert same(load(tmp_path, "result"), value)


@pytest.mark.parametrize(
    "text", ["[]", "", "{}", "null", '{"schema": true}', '{"schema": 2}', "\x00\x01", "[" * 9999]
)
def test_other_documents_are_refused(tmp_path: Path, text: str):
    """A file that is not a saved result is named as such."""
    answer(tmp_path)
    (tmp_path / "result.json").write_text(text)
    assert "result" in refused(tmp_path)


def test_changed_values_and_names_are_refused(tmp_path: Path):
    """The checksum detects a value edited by hand, a renamed field, and a field of another type."""
    answer(tmp_path)
    file = tmp_path / "result.json"
    whole = file.read_text()
    for old, new in (('"need": 2.0', '"need": 3.0'), ('"need"', '"needs"'), ('"need": 2.0', '"need": "2"')):
        assert old in whole
        file.write_text(whole.replace(old, new))
        assert "damaged or changed" in refused(tmp_path)


def test_other_schema_is_named(tmp_path: Path):
    """A file of another version names both versions."""
    answer(tmp_path)
    data = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**data, "schema": 1}))
    assert f"schema 1, this version reads {SCHEMA}" in refused(tmp_path)


def test_changed_arrays_are_refused(tmp_path: Path):
    """An array with one changed number is detected."""
    save((np.arange(5), np.ones(3)), tmp_path, "result")
    np.savez_compressed(tmp_path / "result.npz", a0=np.arange(5), a1=np.zeros(3))
    assert "damaged or changed" in refused(tmp_path)


@examples(80)
@given(cut=st.integers(0, 400), flip=st.integers(0, 255), which=st.sampled_from(["json", "npz"]))
def test_truncated_or_flipped_files_never_load_differently(tmp_path_factory, cut: int, flip: int, which: str):
    """A truncated file or one with a changed byte gives an equal value, or is refused."""
    folder = tmp_path_factory.mktemp("saved")
    value = (np.arange(40, dtype=np.float32), "name", 3)
    save(value, folder, "result")
    file = folder / f"result.{which}"
    content = bytearray(file.read_bytes())
    where = cut % len(content)
    content = (
        content[:where]
        if flip == 0
        else content[:where] + bytes([content[where] ^ flip]) + content[where + 1 :]
    )
    file.write_bytes(bytes(content))
    try:
        kept = same(load(folder, "result"), value)
    except SerializationError as fault:
        kept = "\n" not in str(fault)
    assert kept


@pytest.mark.parametrize("member", ["0.npy", "0", "a/data.pkl", ".."])
def test_an_archive_of_others_is_a_sentence(tmp_path: Path, member: str) -> None:
    """numpy gives the bytes of a member that is not an array, or its own fault."""
    save(Infeasible("pipelined", "m", "SRAM", 2.0, 1.0, "bytes", "x", "shrink it"), tmp_path, "result")
    with zipfile.ZipFile(tmp_path / "result.npz", "w") as archive:
        archive.writestr(member, b"")
    with pytest.raises(SerializationError, match=r"result\.npz"):
        load(tmp_path, "result")
