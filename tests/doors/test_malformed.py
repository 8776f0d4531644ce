"""Generated malformed input: every option of every command, every field of every file.

Each case is a whole command line, run in this process: it ends with status 0, 1 or 2 (never 3, never an exception),
a refusal is one sentence on standard error, and nothing is left in the folder in which it ran.

One file, because the generated cases draw on one table of options and values.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import resource
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import typer

from tests.generated import examples
from wse_sim import door
from wse_sim.bench.command import kernel_commands
from wse_sim.cli import app
from wse_sim.compiler.plan import Infeasible
from wse_sim.serialize import save

pytestmark = pytest.mark.generated
COMMAND = typer.main.get_command(app)
NOWHERE = "/nowhere/thing.yaml"
MOST_CPU_S, MOST_KIB = 20.0, 2 * 2**20
"""What a case may take: CPU time, whatever else the machine does, and memory on top of what was held before."""
# What a command needs before its options: a file that is not there, so that no case ever works for long.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "run": (NOWHERE,),
    "compare": (NOWHERE,),
    "report": ("/nowhere",),
    "place": (NOWHERE,),
    "kernel": ("no_such_kernel",),
    "generate": (NOWHERE,),
    "validate": ("--data", NOWHERE),
    "script": (),
    "csl run": ("/nowhere/commands.sh",),
    "csl check": ("/nowhere",),
    "csl explain": ("/nowhere",),
    "csl memory": ("/nowhere",),
    "csl judge": ("/nowhere",),
    "show wafer": (NOWHERE,),
    "show cluster": (NOWHERE,),
    "show model": (NOWHERE,),
}
ODD = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                " ",
                "x",
                "nan",
                "inf",
                "-inf",
                "-1",
                "0",
                "0.5",
                "1e400",
                "-1e400",
                "true",
                "None",
                "[]",
                "{}",
            ),
            *(
                "9" * 18,
                "9" * 30,
                "9" * 5000,
                "1e12",
                "0x10",
                "1_0",
                "1,5",
                "½",
                "\u0661",
                "a:b",
                "9:3",
                "-1:5",
                "A:",
            ),
            *(
                "/dev/null",
                "/dev/null/x",
                "/proc/none/x",
                "/" + "a" * 300,
                "a" * 300 + "/b",
                "\udcff",
                "café",
                "--",
            ),
            *("gpt2-small,", "../..", ".", "%s", "{0}", "$(true)", "'", '"', "\n", "\t", "*"),
        ]
    ),
    st.text(max_size=12).filter(lambda text: "\x00" not in text),
    st.integers(-(10**20), 0).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(str),
)
TYPES: list[Any] = [
    "x",
    "",
    [],
    {},
    [1, 2],
    {"a": 1},
    None,
    True,
    "1",
    "\udcff".encode("utf-8", "ignore").decode(),
]
NUMBERS: list[Any] = [0, -1, 10**12, 10**30, 1e-300, 0.5, float("inf"), float("-inf"), float("nan"), -0.0]


def options() -> list[tuple[str, str]]:
    """Return (command, flag) of every option that takes a value."""
    found = []
    for name in ARGUMENTS:
        command = COMMAND
        for word in name.split():
            command = command.commands[word]
        for parameter in command.params:
            is_flag = getattr(parameter, "is_flag", False)
            if parameter.param_type_name == "option" and not is_flag and parameter.name != "help":
                found.append((name, parameter.opts[0]))
    return found


def called(words: list[str]) -> tuple[int, str]:
    """Return exit status and standard error of one command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = door.run(COMMAND, words)
    return status, err.getvalue()


def check(words: list[str], folder: Path, *, must: int | None = None) -> None:
    """Run a case and hold it to what every case must do."""
    before = sorted(folder.rglob("*"))
    began, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, text = called(words)
    assert time.process_time() - began < MOST_CPU_S, words
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < MOST_KIB, words
    assert status in (0, 1, 2), (words, status, text)
    if must is not None:
        assert status == must, (words, status, text)
    if status == 2:
        lines = [line for line in text.strip().splitlines() if not line.startswith("wse-sim: note: ")]
        assert len(lines) == 1, (words, text)
        assert lines[0].startswith("wse-sim: ")
        assert 12 < len(lines[0]) < 1500, (words, text)
        assert "Traceback" not in text
        assert sorted(folder.rglob("*")) == before, (words, "left something behind")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder in which all cases run."""
    folder = tmp_path_factory.mktemp("malformed")
    with contextlib.chdir(folder):
        yield folder


def test_every_option_refuses_what_is_odd_in_one_sentence(here: Path) -> None:
    """Over 100 options get values drawn from texts, numbers out of range and impossible paths."""
    found = options()
    assert len(found) > 90

    @examples(700)
    @given(st.sampled_from(found), ODD)
    def case(option: tuple[str, str], value: str) -> None:
        command, flag = option
        check([*command.split(), *ARGUMENTS[command], f"{flag}={value}"], here, must=2)

    case()


@pytest.mark.parametrize("words", [
    "run fc-mnist --batch 0", "run fc-mnist --seed -1", "run fc-mnist --jitter nan", "run fc-mnist --density inf",
    "run fc-mnist --checkpoint-steps 1 --checkpoint-gbytes-per-s nan", "run fc-mnist --batch 1000000000000",
    "compare", "study nothing.yaml", "study --out x", "study plot nothing", "study export nothing --format xls",
    "place fc-mnist --time-limit inf", "place fc-mnist --time-limit -1", "place fc-mnist --seed -1",
    "kernel reduce --param cores=1000000000", "kernel attention --param heads=0", "kernel conv2d --param stride=0",
    "kernel reduce --cycles 60:0 --wse-viz t.txt", "kernel reduce --region 0,0,0,4 --wse-viz t.txt",
    "kernel reduce --timing model --heatmap", "kernel reduce --param cores=4 --param cores=5", "kernel nothing",
    "kernel reduce --region 900,900,5,5 --wse-viz t.txt", "kernel reduce --emit verilog o", "csl run /dev/null", "run", "nothing", "run fc-mnist --no-such-option",
    "run fc-mnist --out /dev/null", "compare fc-mnist --out /dev/null/x", "place fc-mnist --out /dev/null/x",
    "validate --out /dev/null/x", "generate fc-mnist --out /dev/null/x", "kernel reduce --wse-viz /dev/null/x",
    "kernel reduce --heatmap --out /dev/null", "run fc-mnist --hta /dev/null/x", "show model fc-mnist --graph /dev/null/x",
    "show model fc-mnist --batch 0", "run hf:/nowhere/config.json", "run nowhere:factory", "run :", "run ::", "run /",
    "run /dev/null", "run x.pt2", "report /dev/null", "place --check /dev/null /dev/null", "place ispd2020:/dev/null",
])  # fmt: skip
def test_refused_before_any_work(here: Path, words: str) -> None:
    """These cases once ran for minutes, ended in a fault of the simulator or left a folder behind."""
    check(words.split(), here, must=2)


def test_every_parameter_of_every_kernel(here: Path) -> None:
    """Numbers out of range, texts and fractions, by formula."""
    places = [(name, p.name) for name, command in kernel_commands().items() for p in command.params]
    values = st.sampled_from(
        ["-1", "0", "1e12", "nan", "inf", "x", "", "0.3", "9" * 40, "1000000000", "true", "-inf", "²"]
    )

    @examples(250)
    @given(st.sampled_from(places), values)
    def case(place: tuple[str, str], value: str) -> None:
        check(["kernel", place[0], "--timing", "model", "--param", f"{place[1]}={value}"], here)

    case()


def shipped(folder: str, name: str) -> dict[str, Any]:
    """Return a file of the package as data."""
    text = resources.files("wse_sim.configs").joinpath(folder, name).read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def paths_in(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the positions of all fields of a tree."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*at, key)
            yield from paths_in(value, (*at, key))


def broken(data: dict[str, Any], place: tuple[Any, ...], how: str, value: Any) -> dict[str, Any]:
    """Return a copy with one field of another type or out of range, missing, or with a stranger beside it."""
    made = copy.deepcopy(data)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    if how == "missing":
        del inner[place[-1]]
    elif how == "extra":
        inner["no such field"] = value
    else:
        inner[place[-1]] = value
    return made


DAMAGE = st.tuples(
    st.sampled_from(["value", "value", "value", "missing", "extra"]), st.sampled_from(TYPES + NUMBERS)
)
RAW = st.sampled_from([
    b"", b"\x00", b"\xff\xfe\x00", b"{", b"[", b"- a\n- b\n", b"a: &a [*a]\n", b"a: b: c", b"[" * 20_000, b"{a: " * 3000,
    b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "name: é".encode("latin-1"), b"1: 2", b"base: wse2\nname: [x]",
    b"a: 2001-99-99", b"a: " + b"9" * 9000, b"!!python/object:os.system {}", b"a: !!binary x", b"null", b"\t",
])  # fmt: skip


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("command", "folder", "name"), [
    ("show wafer", "wafers", "wse2.yaml"), ("show cluster", "clusters", "default.yaml"),
])  # fmt: skip
def test_every_field_of_hardware_files(here: Path, command: str, folder: str, name: str) -> None:
    """A wafer or cluster with one damaged field is shown as it is, or refused in one sentence."""
    data, file = shipped(folder, name), here / "given.yaml"
    places = list(paths_in(data))

    @examples(120)
    @given(st.sampled_from(places), DAMAGE)
    def case(place: tuple[Any, ...], damage: tuple[str, Any]) -> None:
        file.write_text(yaml.safe_dump(broken(data, place, *damage)), encoding="utf-8")
        check([*command.split(), str(file), "--json"], here)

    case()


def test_every_field_of_a_model_file(here: Path) -> None:
    """A model with one damaged field is refused; no value of these lists makes a model."""
    data, file = shipped("models", "gpt2-small.yaml"), here / "model.yaml"
    places = [place for place in paths_in(data) if place[0] == "model" and len(place) == 2]
    needed = {"family", "layers", "hidden", "heads", "ffn", "vocab"}
    bad = [value for value in TYPES + NUMBERS if value is not None]

    @examples(150)
    @given(st.sampled_from(places), st.sampled_from(["value", "missing", "extra"]), st.sampled_from(bad))
    def case(place: tuple[Any, ...], how: str, value: Any) -> None:
        if how == "missing" and place[1] not in needed:
            how = "extra"
        file.write_text(yaml.safe_dump(broken(data, place, how, value)), encoding="utf-8")
        is_number_text = how == "value" and (value == "1" or value is True or value in (0.5, 0, 1e-300))
        if not is_number_text:  # these may be read as what the field takes
            check(["show", "model", str(file)], here, must=2)

    case()


@pytest.mark.slow
def test_every_size_of_a_transformers_configuration(here: Path) -> None:
    """Sizes out of range and of another type are refused before anything is built."""
    pytest.importorskip("transformers")
    base = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 64, "n_head": 4,
            "vocab_size": 100, "n_positions": 32}  # fmt: skip
    bad = [-1, 0, 10**12, 10**30, 0.5, float("inf"), float("nan"), "x", [], {}, True, 255, None, "", "9" * 5000, [[]], [None],
           ["x"], ["__init__"], {"x": []}, "\x00", 10**400]  # fmt: skip
    file = here / "config.json"

    @examples(60)
    @given(st.sampled_from(list(base)), st.sampled_from(bad))
    def case(key: str, value: Any) -> None:
        if value == 255 and key != "n_head":
            key = "n_head"
        if (value is None or isinstance(value, (list, dict))) and key.startswith(("n_", "vocab")):
            value = -1
        file.write_text(json.dumps({**base, key: value}))
        check(["show", "model", f"hf:{file}"], here, must=2)

    case()


def test_options_without_effect_say_so(here: Path) -> None:
    """A note on standard error; a fault under --strict."""
    for words, says in (
        ("run fc-mnist --mode weight-streaming --batch 4 --seq 9", "not a sequence"),
        ("run fc-mnist --mode weight-streaming --batch 4 --hta hta", "--hta has no effect"),
        (
            "run fc-mnist --mode weight-streaming --batch 4 --skew 0.1",
            "--skew 0.1 has no effect with one system",
        ),
        (
            "run fc-mnist --mode weight-streaming --batch 4 --seed 1",
            "--seed 1 has no effect without --jitter or --skew",
        ),
        ("run fc-mnist --mode weight-streaming --batch 2 --systems 3", "1 of them get no sample"),
        ("kernel reduce --timing model --executor oracle", "--executor has no effect with --timing model"),
        ("kernel reduce --timing model --region 0,0,1,4", "--region has no effect without --wse-viz"),
        (
            "kernel reduce --timing model --interval-workers 2",
            "--interval-workers has no effect without --interval",
        ),
        ("sensitivity reduce --kernel --batch 3", "--batch has no effect with --kernel"),
        (
            "sensitivity fc-mnist --mode weight-streaming --param cores=4",
            "--param has no effect without --kernel",
        ),
        ("validate --data /nowhere --interval-workers 2", "--interval-workers has no effect"),
        ("compare fc-mnist --baselines --batch 4", "--batch has no effect with --baselines"),
        ("generate /nowhere.yaml --trace none", "--trace has no effect without --out"),
        ("place /nowhere.yaml --placer peel", "--placer has no effect for a model"),
        ("place ispd2020:/nowhere --batch 3", "--batch has no effect for an instance"),
    ):
        status, text = called(words.split())
        assert says in text
        assert status in (0, 1, 2)
        status, text = called([*words.split(), "--strict"])
        assert (status, text.count("\n")) == (2, 1)
        assert says in text
    assert not (here / "hta").exists()


def test_bytes_that_are_no_file_of_ours(here: Path) -> None:
    """Other encodings, pictures, cycles, depth: for every kind of file that a command reads."""
    file = here / "raw.yaml"
    lines = [
        ["show", "wafer", str(file)], ["show", "cluster", str(file)], ["show", "model", str(file)],
        ["validate", "--data", str(file)], ["run", f"hf:{file}"], ["place", f"ispd2020:{file}"],
        ["place", "--check", str(file), str(file)], ["run", "fc-mnist", "--wafer", str(file)],
        ["run", "fc-mnist", "--cluster", str(file)], ["kernel", "reduce", "--kernels", str(file)],
        ["generate", str(file)], ["csl", "explain", str(here)],
    ]  # fmt: skip

    @examples(120)
    @given(st.sampled_from(lines), RAW)
    def case(words: list[str], raw: bytes) -> None:
        file.write_bytes(raw)
        check(words, here, must=2)

    case()


def test_a_damaged_result_is_refused(here: Path) -> None:
    """Every change of a saved result is found: fields, types, truncated or flipped bytes."""
    folder = here / "saved"
    save(Infeasible("pipelined", "m", "SRAM", 2.0, 1.0, "bytes", "x", "shrink it"), folder, "result")
    sound = {path.name: path.read_bytes() for path in folder.iterdir()}
    places = list(paths_in(json.loads(sound["result.json"])))

    @examples(100)
    @given(st.sampled_from(places), DAMAGE, st.integers(0, 10**6), st.booleans())
    def case(place: tuple[Any, ...], damage: tuple[str, Any], at: int, is_npz: bool) -> None:
        name = "result.npz" if is_npz else "result.json"
        text = sound[name]
        if is_npz:
            text = text[: at % len(text)]
        else:
            text = json.dumps(broken(json.loads(text), place, *damage)).encode()
            if json.loads(text) == json.loads(sound[name]) or (damage[0] == "extra" and len(place) == 1):
                return
        for other, content in sound.items():
            (folder / other).write_bytes(text if other == name else content)
        check(["report", str(folder)], here, must=2)

    case()
    shutil.rmtree(folder)


def test_code_of_the_users_is_blamed_by_file_and_line(here: Path) -> None:
    """Factories and kernel files that raise, exit, divide by zero or do not parse are named by line; their status is
    never used.
    """
    bodies = {
        "raise KeyError('x')": "KeyError", "1 / 0": "ZeroDivisionError", "import sys; sys.exit(0)": "ends the program",
        "raise SystemExit(7)": "ends the program", "raise BaseException": "BaseException", "x = (": "does not parse",
        "import nothing_of_that_name": "nothing_of_that_name", "[][1]": "IndexError", "exit(3)": "ends the program",
    }  # fmt: skip
    for number, (body, says) in enumerate(bodies.items()):
        for kind in ("import", "call", "kernel"):
            file = here / f"code_{kind}_{number}.py"
            file.write_text(f"def make():\n    {body}\n" if kind == "call" else f"\n{body}\n")
            words = (
                ["kernel", "reduce", "--kernels", str(file)]
                if kind == "kernel"
                else ["run", f"{file.stem}:make"]
            )
            status, text = called(words)
            assert status == 2, (body, kind, text)
            assert says in text
            assert len(text.strip().splitlines()) == 1
            if "nothing" not in body:
                assert f"{file.name}:2" in text, (kind, text)
