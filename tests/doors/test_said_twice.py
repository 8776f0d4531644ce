"""Input that a parser would silently ignore is refused: duplicates, odd digits, unread keys."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import typer

from tests.doors.test_malformed import called, shipped
from tests.frontend.families import FAMILIES
from tests.generated import cases, examples
from tests.placement.test_contest import TWO
from wse_sim.cli import app
from wse_sim.compiler.contest_graph import parse_kgraph
from wse_sim.csl.host.commands import parse_cslc
from wse_sim.errors import ConfigError, WseError
from wse_sim.files import read_json, read_yaml
from wse_sim.frontend.parameters import _READ, ModelParameters, parse_parameters
from wse_sim.frontend.zoo import build
from wse_sim.hardware import load_cluster, load_wafer

pytestmark = pytest.mark.generated
FILES = [
    ("wafers", "wse2.yaml"),
    ("clusters", "default.yaml"),
    ("models", "gpt2-small.yaml"),
    ("chips", "wse1.yaml"),
]


def written(data: Any, twice: tuple[Any, ...], depth: int = 0) -> Iterator[str]:
    """Yield lines of YAML in which the key at the path `twice` occurs twice."""
    for key, value in data.items():
        for _ in range(2 if twice == (key,) else 1):
            if isinstance(value, dict):
                yield f"{'  ' * depth}{key}:"
                yield from written(
                    value, twice[1:] if twice[:1] == (key,) and len(twice) > 1 else (), depth + 1
                )
            else:
                yield f"{'  ' * depth}{key}: {json.dumps(value, default=str)}"


def keys_in(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*above, key)
            yield from keys_in(value, (*above, key))


@pytest.mark.slow
def test_a_key_twice_at_any_place_of_any_file(tmp_path: Path) -> None:
    """The error for YAML names both lines, that for JSON the key; without the duplicate the file is read."""
    texts = {file: json.dumps(shipped(*file), default=str) for file in FILES}
    every = [(text, path) for text in texts.values() for path in keys_in(json.loads(text))]

    @examples(200)
    @given(st.sampled_from(every), st.booleans())
    def case(chosen: tuple[str, tuple[Any, ...]], as_json: bool) -> None:
        data, path = json.loads(chosen[0]), chosen[1]
        file = tmp_path / "file"
        text = "\n".join(written(data, path)) + "\n"
        if as_json:
            inner = data
            for key in path[:-1]:
                inner = inner[key]
            text = chosen[0]
            part = json.dumps(inner, default=str)
            text = text.replace(part, part[:-1] + f", {json.dumps(path[-1])}: 0}}", 1)
            read: Any = read_json
        else:
            read = read_yaml
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"key '{path[-1]}' is given twice"):
            read(file)
        if not as_json:
            file.write_text("\n".join(written(data, ())) + "\n")
            assert read_yaml(file) == data

    case()


@pytest.mark.parametrize("text", ["1_0", "0100", "1:30", "+0_1", "1_0.5", "0x1_0", "00.5", "1_000_000"])
def test_numbers_in_odd_spellings_in_a_file(tmp_path: Path, text: str) -> None:
    """YAML 1.1 reads octal digits, underscores and base sixty; in quotes they are text."""
    file = tmp_path / "file.yaml"
    for line in (f"a: {text}", f"a: [1, {text}]", f"{text}: a", f"a: {{b: {text}}}"):
        file.write_text(f"x: 1\n{line}\n")
        with pytest.raises(ConfigError, match="in line 2 is not a number; write it with the digits"):
            read_yaml(file)
    file.write_text(f'a: "{text}"\nb: x{text}\nc: 0x10\nd: 0.5\ne: 1e3\nf: -0\ng: 2024-01-02\n')
    read = read_yaml(file)
    assert read["a"] == text
    assert read["e"] == 1000.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_of_json_is_that_number_in_a_file(number: float) -> None:
    """JSON writes 0.00005 as 5e-05, which YAML 1.1 takes for a text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file.yaml"
        file.write_text(f"a: {json.dumps(number)}\n")
        assert read_yaml(file)["a"] == number


def single_options() -> list[tuple[tuple[str, ...], Any]]:
    """Return every option of every command that takes one value or none."""
    found: list[tuple[tuple[str, ...], Any]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, below in getattr(command, "commands", {}).items():
            walk(below, (*path, name))
        if not hasattr(command, "commands") and not command.context_settings.get("ignore_unknown_options"):
            found.extend(
                (path, p) for p in command.params
                if p.param_type_name == "option" and not p.multiple and p.name != "help" and p.nargs == 1
            )  # fmt: skip

    walk(typer.main.get_command(app), ())
    return found


def test_an_option_given_twice_is_refused() -> None:
    """Every option of every command is given in two spellings, before the command examines anything else."""
    every = single_options()
    assert len(every) > 150
    for path, option in every[:: max(1, len(every) // cases(120))]:
        flag = option.opts[0]
        words = [flag] if option.is_flag else [f"{flag}=7"]
        again = [option.opts[-1]] if option.is_flag else [flag, "7"]
        if path[0] == "show" or path[:1] == ("script",):
            continue
        status, text = called([*path, *words, *again])
        assert (status, f"{flag} is given twice" in text) == (2, True), (path, flag, text)


@pytest.mark.parametrize("text", ["1_0", "１２", "٣", "1_0.5"])
def test_a_number_of_an_option_in_odd_digits(text: str) -> None:
    """Every option that takes a number is tried; the error is about the digits, whatever else is wrong."""
    numbers = [(path, p) for path, p in single_options() if {int, float} & _kinds(p) and path[0] != "script"]
    assert len(numbers) > 60
    for path, option in numbers[:: max(1, len(numbers) // cases(80))]:
        status, said = called([*path, option.opts[0], text])
        assert status == 2
        assert "spell numbers with the digits 0 to 9" in said, (path, option.opts, said)


def _kinds(option: Any) -> set[Any]:
    from typing import get_args

    stated = option.type_descriptor.annotation
    return {stated, *get_args(stated)}


@pytest.mark.parametrize("words", [
    "l.csl -o a -o b", "l.csl --arch=wse2 --arch wse3", "l.csl --params=N:1,N:2", "l.csl --params=N:1 --params=N:2",
    "l.csl --fabric-dims=1_0,3", "l.csl --channels=１", "l.csl --colors=c:1_0", "l.csl --colors=c:1,c:2",
])  # fmt: skip
def test_options_of_the_compiler(words: str) -> None:
    with pytest.raises(WseError, match=r"twice|integer"):
        parse_cslc(words.split())
    assert parse_cslc(["l.csl", "--params=N:1", "--params=M:2", "-o", "a"])[1]["params"] == {
        "N": "1",
        "M": "2",
    }


@pytest.mark.parametrize("text", ["1_0", "１２", "٣"])
def test_parameters_of_kernels_in_odd_digits(text: str) -> None:
    assert called(["kernel", "reduce", "--timing", "model", "--param", f"cores={text}"])[0] == 2


class Watched(ModelParameters):
    """Parameters that record which of them are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in ModelParameters.model_fields:
            SEEN.add(name)
        return super().__getattribute__(name)


SEEN: set[str] = set()


def test_families_read_what_they_take() -> None:
    """The keys from which a family's models are built are recorded; every other key is refused, in any family."""
    read: dict[str, set[str]] = {}
    for stated in FAMILIES.values():
        checked = parse_parameters(stated)
        watched = Watched.model_construct(_fields_set=checked.model_fields_set, **dict(checked))
        SEEN.clear()
        build(watched, batch=2, loss=True)
        read.setdefault(checked.family, set()).update(SEEN)
    for family, seen in read.items():
        beyond = (
            seen
            - _READ[family]
            - {"tied", "positions", "dropout", "seq", "activation", "ffn", "kv_heads", "mlm_positions"}
        )
        assert not beyond, (family, beyond)
    values = {
        "activation": "silu",
        "positions": "rotary",
        "tied": True,
        "parallel_residual": True,
        "dropout": 0.2,
    }
    for name, stated in FAMILIES.items():
        parse_parameters(stated)
        for key in sorted(set(ModelParameters.model_fields) - _READ[stated["family"]]):
            with pytest.raises(ConfigError, match=f"'{key}' has no meaning for a model of family"):
                parse_parameters({**stated, key: values.get(key, 2)}, name)


@pytest.mark.parametrize(("change", "says"), [
    ({"rotary_dim": 8}, "needs positions: rotary"), ({"positions": "rotary", "rotary_dim": 7}, "is odd"),
    ({"positions": "rotary", "rotary_dim": 400}, "a head's width"), ({"max_positions": 8, "seq": 32}, "below seq"),
    ({"max_positions": 64, "positions": "rotary"}, "needs positions: learned"), ({"tied": "no"}, "tied"),
    ({"tied": 1}, "tied"), ({"parallel_residual": "yes"}, "parallel_residual"),
])  # fmt: skip
def test_keys_that_do_not_go_together(change: dict[str, Any], says: str) -> None:
    base = {"family": "decoder", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100, "seq": 16}
    with pytest.raises(ConfigError, match=says):
        parse_parameters({**base, **change})


@pytest.mark.slow
def test_constants_outside_of_what_they_can_be(tmp_path: Path) -> None:
    """Values and stated ranges of every constant of a wafer and a cluster are checked: 10^30, 10^-320, below the
    possible.
    """
    chance = random.Random(0)
    for folder, name, load in (
        ("wafers", "wse2.yaml", load_wafer),
        ("clusters", "default.yaml", load_cluster),
    ):
        constants = shipped(folder, name)["constants"]
        numbers = [key for key, entry in constants.items() if isinstance(entry["value"], int | float)]
        for key in chance.sample(numbers, min(len(numbers), cases(60))):
            entry = constants[key]
            whole = isinstance(entry["value"], int)
            for value in (10**30, -(10**30) if whole else -1e30, *(() if whole else (1e-320,))):
                file = tmp_path / f"{key}.yaml"
                for changed in (
                    {"value": value},
                    {"range": [min(entry["value"], value), max(entry["value"], value)]},
                ):
                    if abs(value) < 1 and "range" in changed:
                        continue  # a range may begin at next to nothing
                    stated = {k: v for k, v in entry.items() if k != "range"} | changed
                    base = name.removesuffix(".yaml")
                    file.write_text(yaml.safe_dump({"name": "x", "base": base, "constants": {key: stated}}))
                    with pytest.raises(ConfigError, match=key):
                        load(str(file))
                    file.unlink()


GRAPH = TWO.replace("(*\n", "").replace("*)\n", "")


@pytest.mark.parametrize(("old", "new", "says"), [
    ("height=20", "height=20\nwidth=7", "line 3 .*width=7 again"), ("height=20", "heigth=20", "did you mean height"),
    ("R=1", "R=1 Q=5", "Q, which nothing reads"), ("W=8 H=8 R=1", "W=8 W=28 H=8 R=1", "W twice"),
    ("-> conv[2]:x", "-> dblock[2]:x", "node 2 is a conv"), ("conv[1]:y -> conv[2]:x", "conv[1]:y -> conv[2]:x conv[2]:y -> conv[9]:x", "node 9"),
    ("wadapter=0", "wadapter=0, wlength=4", "wlength=4 again"),
])  # fmt: skip
def test_lines_of_graphs(old: str, new: str, says: str) -> None:
    parse_kgraph(GRAPH)
    with pytest.raises(ConfigError, match=says):
        parse_kgraph(GRAPH.replace(old, new, 1))


@pytest.mark.slow
def test_lines_of_graphs_that_would_blow_up() -> None:
    """Each of 300,000 characters of short repeated patterns is answered, so the test ends."""
    parts = [
        "a",
        "a ",
        "a=",
        "bb=",
        "a='",
        'a="',
        "(*",
        "*)",
        "a[1]",
        "a[1]:",
        " ",
        "->",
        ":",
        "a=b,",
        "a[1]:b -> ",
        "\t",
        "_=",
        "=,",
    ]

    @examples(60)
    @given(
        st.lists(st.sampled_from(parts), min_size=1, max_size=4),
        st.sampled_from(["", "x", "[", "="]),
        st.booleans(),
    )
    def case(pattern: list[str], end: str, is_after: bool) -> None:
        unit = "".join(pattern)
        text = ("conv[1] " if is_after else "") + unit * (300_000 // len(unit)) + end
        with pytest.raises(ConfigError):
            parse_kgraph(text)

    case()
