"""Options are declared once: ranges hold everywhere, a fault is one sentence, every command has every option."""

from __future__ import annotations

import inspect
import math
from typing import Annotated

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wse_sim import cli
from wse_sim.compiler.placers.options import PlaceOptions
from wse_sim.declarations import Only, Without, command
from wse_sim.errors import ModelError, WseError
from wse_sim.options import (
    Declared,
    GenerationOptions,
    KernelOptions,
    Real,
    RunOptions,
    Whole,
    option,
)

DECLARATIONS = (RunOptions, GenerationOptions, PlaceOptions, KernelOptions)
WHOLE = [(kind, each.name) for kind in DECLARATIONS for each in kind.options() if each.type is int]
REAL = [(kind, each.name) for kind in DECLARATIONS for each in kind.options() if each.type is float]


@pytest.mark.parametrize(("kind", "name"), WHOLE)
@pytest.mark.parametrize("value", [True, 1.5, math.nan, math.inf, "7", "many", -1, 10**30, [1]])
def test_a_whole_number_is_nothing_else(kind: type[Declared], name: str, value: object):
    """Truth values, fractions, infinities, text, negative and absurd sizes cause one sentence that names the value."""
    with pytest.raises(WseError) as caught:
        kind(**{name: value})
    text = str(caught.value)
    assert name.replace("_", " ") in text
    assert str(value) in text
    assert "; " in text
    assert "\n" not in text


@pytest.mark.parametrize(("kind", "name"), REAL)
@pytest.mark.parametrize("value", [True, math.nan, math.inf, -math.inf, "0.5", -1.0, 1e30])
def test_a_real_number_is_finite_and_in_range(kind: type[Declared], name: str, value: object):
    """The same holds for rates and fractions."""
    with pytest.raises(WseError) as caught:
        kind(**{name: value})
    assert name.replace("_", " ") in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(-(10**12), 10**12))
def test_the_limits_are_those_that_are_stated(batch: int):
    """A batch is accepted exactly if it is between the limits that the sentence and the table name."""
    limits = dict(next(each for each in RunOptions.options() if each.name == "batch").limits)
    if limits["ge"] <= batch <= limits["le"]:
        assert RunOptions(batch=batch).batch == batch
    else:
        with pytest.raises(ModelError, match="give 1 to 1,000,000,000 samples"):
            RunOptions(batch=batch)


def test_numbers_of_numpy_are_numbers():
    """An int64 and a float32 are accepted; an integral float becomes the integer."""
    options = RunOptions(batch=np.int64(8), density=np.float32(0.5), seq=16.0)
    assert (options.batch, options.density, options.seq) == (8, 0.5, 16)
    assert type(options.batch) is int


def test_a_choice_and_an_unknown_field_name_what_there_is():
    """The sentence lists the choices, or the options."""
    with pytest.raises(ModelError, match="phase 'fast' is unknown; use one of training, inference"):
        RunOptions(phase="fast")
    with pytest.raises(ModelError, match="option 'batches' is unknown; use some of mode, phase, batch"):
        RunOptions(batches=3)


def test_a_copy_with_changes_is_checked():
    """`replace` keeps the rest and refuses what a new object would refuse."""
    options = RunOptions(batch=7).replace(seq=3)
    assert (options.batch, options.seq) == (7, 3)
    with pytest.raises(ModelError, match="seq 0 is too small"):
        options.replace(seq=0)


class Few(Declared):
    """A made-up declaration."""

    count: Whole = option(2, "How many.", unit="things", ge=1, le=9)
    size: Real | None = option(None, "How large.", flag="--size -s", gt=0)


def test_a_command_gets_every_option_of_a_declaration():
    """One parameter of the function represents all fields: flags, types and defaults are those of the declaration."""
    seen = []

    @command
    def all_of(name: str, few: Few) -> None:
        seen.append((name, few))

    @command
    def some_of(one: Annotated[Few, Only("count")], rest: Annotated[Few, Without("count")]) -> None:
        seen.append((one, rest))

    names = list(inspect.signature(all_of).parameters)
    assert names == ["name", "count", "size"]
    assert list(inspect.signature(some_of).parameters) == ["count", "size"]
    all_of(name="x", count=3, size=None)
    some_of(count=4, size=0.5)
    assert seen == [("x", Few(count=3)), (Few(count=4), Few(size=0.5))]
    with pytest.raises(WseError, match="count 10 is too large; give 1 to 9 things"):
        all_of(name="x", count=10, size=None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("run", RunOptions),
        ("compare", RunOptions),
        ("generate", GenerationOptions),
        ("place", PlaceOptions),
        ("kernel", KernelOptions),
    ],
)
def test_the_command_line_has_every_declared_option_with_its_default(name: str, kind: type[Declared]):
    """No option is declared a second time, so none can differ."""
    function = next(each.callback for each in cli.app.registered_commands if each.name == name)
    parameters = inspect.signature(function).parameters
    for each in kind.options():
        if (name, each.name) == ("compare", "mode"):
            continue  # it runs both
        assert parameters[each.name].default == each.default
