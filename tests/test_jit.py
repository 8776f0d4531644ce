"""Additions of the numba alias: bit instructions with a body in Python, and a stamp that follows imports."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wse_sim import jit
from wse_sim.fabric.executors import oracle
from wse_sim.fabric.executors.gpu import planes
from wse_sim.fabric.executors.maxplus import records
from wse_sim.fabric.executors.wavelet import loop
from wse_sim.fabric.vm import state
from wse_sim.jit import helper_kernel, kernel, population, trailing_zeros
from wse_sim.jit_bundles import bundled, by_pointer
from wse_sim.jit_helpers import TakenIn

ROOT = Path(jit.__file__).parent.parent
WAVELET = ("planes", "cores", "links", "bands", "payload")


@kernel
def zeros_and_ones(words: np.ndarray, found: np.ndarray) -> None:
    for i in range(words.shape[0]):
        found[i, 0], found[i, 1] = trailing_zeros(words[i]), population(words[i])


@helper_kernel
def squared(n: int) -> int:
    return n * n


@kernel
def is_square_even(n: int) -> bool:
    return squared(n) % 2 == 0


@by_pointer
class Weights(NamedTuple):
    rows: Any
    ready: bool
    scale: float
    place: int
    small: Any


@helper_kernel
def weighed(weights, k):
    return weights.scale * weights.rows[k] + weights.small[weights.place] if weights.ready else -1.0


@kernel
def weigh(weights, found):
    for i in range(len(found)):
        of_row = bundled(
            Weights(weights.rows[i], weights.ready, weights.scale + i, weights.place, weights.small)
        )
        for k in range(found.shape[1]):
            found[i, k] = weighed(of_row, k)


CALLS_IN_A_CIRCLE = """
from wse_sim.jit import helper_kernel, kernel

@helper_kernel
def is_even(n):
    return True if n == 0 else is_odd(n - 1)

@helper_kernel
def is_odd(n):
    return False if n == 0 else is_even(n - 1)

@kernel
def is_even_number(n):
    return is_even(n)

try:
    is_even_number(3)
except RecursionError as fault:
    print(fault)
"""


@pytest.mark.skipif(jit.is_interpreted(), reason="nothing is compiled")
def test_helpers_have_no_machine_code() -> None:
    """A number and its square are odd together; callers inline LLVM's text of a helper, not its machine code."""
    assert [is_square_even(n) for n in (3, 4, 7)] == [False, True, False]
    if not squared.overloads:  # the caller came from the disk
        squared.compile((numba.int64,))
    (found,) = squared.overloads.values()
    assert isinstance(found.library, TakenIn)
    assert found.library.get_pointer_to_function(found.fndesc.mangled_name) == 0


@pytest.mark.parametrize("ready", [True, False])
def test_a_bundle_of_arrays_has_every_field_in_every_function(ready: bool) -> None:
    """(scale + row) number + small[place] in numpy; fields of 1, 2 and 8 bytes lie between the arrays."""
    rows, small = np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2], np.array([7, 9], np.int16)
    found = np.zeros((3, 2))
    weigh(Weights(rows, ready, 0.5, 1, small), found)
    expected = (0.5 + np.arange(3))[:, None] * rows + 9 if ready else np.full((3, 2), -1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(jit.is_interpreted(), reason="nothing is compiled")
def test_bundles_of_other_arrays_are_other_types() -> None:
    """The name of the type stands for those of all fields; a list is no field."""
    one, two = (numba.typeof(Weights(np.zeros(2, kind), True, 0.5, 1, np.zeros(1))) for kind in "dq")
    assert one != two
    assert one.name != two.name
    assert one == numba.typeof(Weights(np.ones(5), False, 1.5, 2, np.ones(3)))
    with pytest.raises(TypeError, match="must be an array, a number or a bundle"):
        numba.typeof(Weights("text", True, 0.5, 1, np.zeros(1)))


@pytest.mark.slow
@pytest.mark.skipif(jit.is_interpreted(), reason="nothing is compiled")
def test_helpers_that_call_each_other_are_refused_every_time(tmp_path: Path) -> None:
    """numba would compile them, and code loaded from the disk would crash the process of the second run."""
    (tmp_path / "circle.py").write_text(CALLS_IN_A_CIRCLE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "circle.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "call each other recursively; replace one call by a loop" in done.stdout


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), min_size=1))
def test_bit_instructions_equal_their_bodies(words: list[int]) -> None:
    """Machine code, plain Python, and the digits of the number agree."""
    found = np.zeros((len(words), 2), np.int64)
    zeros_and_ones(np.array(words, np.uint64), found)
    digits = [f"{word:064b}" for word in words]
    expected = [[64 - len(d.rstrip("0")), d.count("1")] for d in digits]
    assert found.tolist() == expected
    assert [[trailing_zeros(word), population(word)] for word in np.array(words, np.uint64)] == expected


def test_stored_code_depends_on_the_files_that_its_file_imports() -> None:
    """The wavelet loop inlines functions of other files; the compiler of plans is none of them."""
    names = {str(file.relative_to(Path(jit.__file__).parent)) for file in jit._sources(Path(loop.__file__))}
    assert {
        "jit.py",
        "fabric/executors/core.py",
        "fabric/executors/wavelet/routers.py",
        "fabric/format/values.py",
    } <= names
    assert not any(name.startswith(("compiler", "engine", "fabric/run")) for name in names)


def test_the_stamp_changes_with_a_file_behind_an_import(tmp_path: Path) -> None:
    """A file that imports from the package has another stamp than one that does not."""
    alone, importing = tmp_path / "alone.py", tmp_path / "importing.py"
    alone.write_text("x = 1\n")
    importing.write_text("x = 1\nfrom wse_sim.units import parse_size\n")
    assert len(jit._sources(alone)) == 1
    assert len(jit._sources(importing)) > 1
    before = jit.sources_stamp(str(alone))
    alone.write_text("x = 2\n")
    jit.sources_stamp.cache_clear()
    assert jit.sources_stamp(str(alone)) != before


def test_bundles_of_arrays_have_names_of_their_own() -> None:
    """Numba distinguishes bundles of equal arrays by the name of the class alone: with equal names each call looks its
    types up again.
    """
    wavelet = [importlib.import_module(f"wse_sim.fabric.executors.wavelet.{name}") for name in WAVELET]
    modules = [oracle, planes, records, state, *wavelet]
    found = {
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, tuple) and member.__module__ == module.__name__
    }
    shapes = sorted((one.__name__, len(one._fields)) for one in found)
    assert len(shapes) > 15
    assert shapes == sorted(set(shapes))


PAIR = """
from typing import NamedTuple
import numpy as np
class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray
"""
MAIN = """
import numpy as np
from added import total
from {module} import Pair
print(total(Pair(np.ones(3), np.ones(4))))
"""


@pytest.mark.slow
def test_a_class_that_moved_does_no_harm(tmp_path: Path) -> None:
    """Stored code names the class of its argument; the class is gone, the function and its file are unchanged: it is
    compiled again.
    """
    (tmp_path / "added.py").write_text(
        "from wse_sim.jit import kernel\n@kernel\ndef total(pair):\n    return pair.a.sum() + pair.b.sum()\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_DISABLE_JIT", None)
    for module in ("before", "after", "after"):
        (tmp_path / "before.py").unlink(missing_ok=True)
        (tmp_path / f"{module}.py").write_text(PAIR)
        (tmp_path / "main.py").write_text(MAIN.format(module=module))
        done = subprocess.run(
            [sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "7.0\n"), done.stderr
    assert list((tmp_path / "cache").rglob("*.nbi"))


@pytest.mark.slow
@pytest.mark.skipif(jit.is_interpreted(), reason="nothing is compiled")
def test_a_helper_from_the_disk_is_taken_in_by_a_new_caller(tmp_path: Path) -> None:
    """The second caller finds the helper stored, and the third calls what the second stored: the fourth power of 3 plus
    1, 2, 2.
    """
    (tmp_path / "helps.py").write_text(
        "from wse_sim.jit import helper_kernel\n@helper_kernel\ndef squared(n):\n    return n * n\n"
    )
    caller = "from wse_sim.jit import kernel\nfrom helps import squared\n@kernel\ndef call(n):\n    return squared(squared(n)) + {}\n"
    main = "from calls import call\nfrom helps import squared\nprint(call(3), sum(squared.stats.cache_hits.values()))\n"
    (tmp_path / "main.py").write_text(main)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    said = []
    for more in (1, 2, 2):
        (tmp_path / "calls.py").write_text(caller.format(more))
        done = subprocess.run(
            [sys.executable, "-B", "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said == ["82 0\n", "83 1\n", "83 0\n"]
