"""The entry points: the input of every command, each with a generator of malformed cases
(:mod:`tests.doors.strangers`).
"""

from __future__ import annotations

import ast
import io
import json
import shutil
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.doors import strangers
from tests.doors.strangers import Case, Chance, Door, blob, document
from tests.doors.test_malformed import NOWHERE, options, shipped
from tests.doors.test_malformed_formats import CORE, LAYOUT
from tests.placement.graphs import kgraph_text
from wse_sim.bench.command import kernel_commands
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import WseError
from wse_sim.frontend.hints import read_pins
from wse_sim.serialize import save

FABRIC = ["--fabric-dims=9,3", "--fabric-offsets=4,1"]
YAML = "wse_sim.files:_check_size"  # all YAML passes it
JSON = "wse_sim.files:read_text"


def document_door(name: str, count: int, data: Any, file: str, words: Sequence[str], readers: tuple[str, ...],
                  *, is_json: bool = False, open_at: Sequence[str] = (), beside: dict[str, bytes] | None = None,
                  call: strangers.Call | None = None) -> Door:  # fmt: skip
    """Return a YAML or JSON file."""

    def make(chance: Chance) -> Case:
        content, must, change = document(data, chance, is_json=is_json, open_at=open_at)
        return Case({**(beside or {}), file: content}, words, call, must, change)

    whole = (json.dumps(data) if is_json else yaml.safe_dump(data, sort_keys=False)).encode()
    return Door(name, count, make, readers, Case({**(beside or {}), file: whole}, words, call))


def blob_door(name: str, count: int, data: bytes, file: str, words: Sequence[str], readers: tuple[str, ...],
              *, beside: dict[str, bytes] | None = None, call: strangers.Call | None = None) -> Door:  # fmt: skip
    """Return a file of any other kind."""

    def make(chance: Chance) -> Case:
        content, must, change = blob(data, chance)
        return Case({**(beside or {}), file: content}, words, call, must, change)

    return Door(name, count, make, readers, Case({**(beside or {}), file: data}, words, call))


# Descriptions: models, machines, studies, points


def descriptions() -> list[Door]:
    """Return the files in YAML and JSON that people write."""
    model = {
        "name": "x",
        "source": "made up",
        "model": {
            "family": "decoder",
            "layers": 1,
            "hidden": 32,
            "heads": 2,
            "ffn": 64,
            "vocab": 50,
            "seq": 16,
            "activation": "gelu",
            "positions": "learned",
        },
    }
    gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 32, "n_head": 2,
            "vocab_size": 50, "n_positions": 16}  # fmt: skip
    pins = {
        "pins": [
            {"module": "h.*.mlp", "rows": 60, "cols": 80},
            {"module": "x", "region": "east", "replicas": 2},
        ]
    }
    study = {
        "about": "a study", "fixed": {"model": "fc-mnist", "mode": "pipelined"}, "outputs": ["samples_per_s"], "draws": 2,
        "grid": {"batch": {"from": 8, "to": 64, "steps": 3, "scale": "log"}, "systems": [1, 2]},
        "sample": {"method": "sobol", "runs": 4, "seed": 1, "over": {"wafer.clock_hz": {"from": 1e9, "to": 1.1e9}}},
        "constraints": ["batch % systems == 0"],
    }  # fmt: skip
    suite = {"schema": 1, "points": [{"id": "a", "system": "wse2", "subject": "kernel.reduce", "params": {"cores": 4, "words": 8},
             "quantity": "cycles", "measured": 100, "unit": "cycles", "evidence": "none", "source": "made up"}]}  # fmt: skip
    turns = {"grid": 10, "tick_s": 1e-9, "regions": [{"layers": 2, "base_s": [0.0, 1e-5, 2e-5], "head_s": 1e-6}],
             "deep_s": [0.0, 1e-8, 2e-8, 3e-8, 4e-8, 5e-8, 6e-8, 7e-8, 8e-8, 9e-8]}  # fmt: skip
    serve = ["serve", "none", "--turns", "given.json", "--requests", "3", "--rate", "5", "--input", "8", "--output", "2",
             "--kv-blocks", "9", "--engine", "reference"]  # fmt: skip
    return [
        document_door("models", 600, model, "given.yaml", ["show", "model", "given.yaml"], (YAML,), open_at=("source", "about")),
        document_door("wafers", 500, shipped("wafers", "wse2.yaml"), "given.yaml", ["show", "wafer", "given.yaml", "--json"], (YAML,)),
        document_door("clusters", 300, shipped("clusters", "default.yaml"), "given.yaml", ["show", "cluster", "given.yaml", "--json"], (YAML,)),
        document_door("configurations of transformers", 150, gpt2, "config.json", ["show", "model", "hf:config.json"],
                      ("wse_sim.frontend.huggingface:read_json",), is_json=True, open_at=tuple(gpt2)),
        document_door("pins", 250, pins, "pins.yaml", (), (YAML,), call=lambda: read_pins("pins.yaml")),
        document_door("studies", 400, study, "study.yaml", ["study", "study.yaml", "--dry-run", "--workers", "0"], (YAML,),
                      open_at=("fixed", "grid", "over")),
        document_door("points of validation", 150, suite, "suite.yaml", ["validate", "--data", "suite.yaml", "--timing", "model", "--quiet"],
                      (YAML,)),
        document_door("tables of turns", 200, turns, "given.json", serve, ("wse_sim.serving.latency:read_json",), is_json=True,
                      open_at=tuple(turns)),
    ]  # fmt: skip


# Text with a grammar of its own


def grammars() -> list[Door]:
    """Return generators for graphs, placements, programs, command lines, requests and logs."""
    graph = kgraph_text([(14, 14, 3, 3, 16, 32, 1), (7, 7, 3, 3, 32, 64, 1)], [(0, 1)]).encode()
    paint = (
        b'include "common.paint"\n'
        b"k1 = conv( 14 14 16 32 3 3 1 1 1 1 1 1 )\nk1 : name('k1)\nk1 : place(0 0 R0)\n"
        b"k2 = conv( 7 7 32 64 3 3 1 1 1 1 1 1 )\nk2 : name('k2)\nk2 : place(50 50 R0)\nkmap = union( k1 k2 )\n"
    )
    check = ["place", "--check", "g.kgraph", "p.paint"]
    cslc = ["cslc", "layout.csl", "--arch", "wse2", *FABRIC, "--params=size:4", "-o", "built"]
    program = {"layout.csl": LAYOUT.encode(), "core.csl": CORE.encode()}
    return [
        blob_door("graphs of kernels", 350, graph, "g.kgraph", check, ("wse_sim.compiler.contest_graph:parse_kgraph",),
                  beside={"p.paint": paint}),
        blob_door("placements", 200, paint, "p.paint", check, ("wse_sim.compiler.contest_paint:read_text",), beside={"g.kgraph": graph}),
        built(blob_door("layouts in CSL", 150, program["layout.csl"], "layout.csl", cslc, ("wse_sim.csl.host.commands:compile_program",), beside=program)),
        built(blob_door("programs in CSL", 150, program["core.csl"], "core.csl", cslc, ("wse_sim.csl.host.commands:compile_program",), beside=program)),
        *requests(),
        runs(),
    ]  # fmt: skip


def built(door: Door) -> Door:
    """Compile without the results of an earlier case."""

    def make(chance: Chance) -> Case:
        shutil.rmtree("built", ignore_errors=True)
        case = door.make(chance)
        case.must &= all(content.strip() for content in case.files.values())  # an empty program is one
        return case

    return Door(door.name, door.count, make, door.readers, door.sound)


TRACES = {
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,ChatGPT,1087,0\n118,GPT-4,417,276\n",
    "mooncake": b'{"timestamp": 0, "input_length": 675, "output_length": 50, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 3052, "input_length": 72, "output_length": 5, "hash_ids": [3]}\n',
    "llmservingsim": b'{"input_toks": 12, "output_toks": 3, "arrival_time_ns": 1000}\n{"input_toks": 4, "output_toks": 9, "arrival_time_ns": 5000}\n',
    "sharegpt": b'[{"id": "a", "conversations": [{"from": "human", "value": "why so"}, {"from": "gpt", "value": "it is so because"}]}]',
}
"""Public traces of requests, two or three rows of each form (the numbers made up)."""


def requests() -> list[Door]:
    """Return the traces of serving requests."""
    from wse_sim.serving import traces

    def reads(form: str) -> strangers.Call:
        return lambda: traces.load_of(f"{form}:trace")

    return [
        blob_door(
            f"requests of {form}",
            120,
            data,
            "trace",
            (),
            ("wse_sim.serving.traces:load_of",),
            call=reads(form),
        )
        for form, data in TRACES.items()
    ]


LOG = b"""2024-03-14 03:18:49,079 INFO:   Effective batch size is 8.
2024-03-14 03:42:56,272 INFO:   Preparing to execute using 1 CSX
2024-03-14 03:46:02,970 INFO:   | Train Device=CSX, Step=100, Loss=7.93750, Rate=40.00 samples/sec, GlobalRate=40.00 samples/sec
2024-03-14 03:46:22,970 INFO:   | Train Device=CSX, Step=200, Loss=6.62500, Rate=40.00 samples/sec, GlobalRate=40.00 samples/sec
"""
RUN = {
    "mine/a/run.yaml": b"model: {family: mlp, layers: 3, hidden: 32, input: 64, classes: 10}\nwafer: wse2\n",
    "mine/a/train.log": LOG,
    "mine/a/performance.json": b'{"total_samples": 1600, "total_time": 40.0, "samples_per_sec": 40.0}',
    "mine/a/compile_report.txt": b"Estimated Overall Performance\nSamples/s:   14724.2\n",
    "mine/a/params.yaml": yaml.safe_dump({
        "trainer": {"init": {"model": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "filter_size": 128,
                                       "vocab_size": 100, "max_position_embeddings": 32}},
                    "fit": {"train_dataloader": {"batch_size": 8, "max_sequence_length": 32}}}}).encode(),
}  # fmt: skip


def runs() -> Door:
    """Return the runs of a machine of one's own: a fault is its own row, so a reader that fails is seen in the rows."""
    from wse_sim.validation.user_runs import load_mine

    def read() -> None:
        points = load_mine(Path("mine")).points
        for point in points:
            if bool(point.fault) == bool(point.measured):
                raise AssertionError(f"neither a measurement nor a sentence: {point}")
        if points[0].fault:
            raise WseError(points[0].fault)

    def make(chance: Chance) -> Case:
        name = chance.choice(sorted(RUN))
        content, must, change = blob(RUN[name], chance)
        is_stated = name.endswith("run.yaml")
        return Case({**RUN, name: content}, call=read, must=must and is_stated, change=f"{name} {change}")

    return Door(
        "logs and files of runs",
        300,
        make,
        ("wse_sim.validation.user_runs:read_statement",),
        Case(RUN, call=read),
    )


# Files that programs write


def written(folder: Path) -> list[Door]:
    """Return generators for results, stores of studies, compiled programs, exported programs and checkpoints."""
    return [results(folder), stores(folder), compiled(folder), exported(folder), *checkpoints(folder)]


def results(folder: Path) -> Door:
    """Return a saved result: every change of a word or of a byte is seen."""
    save(Infeasible("pipelined", "m", "SRAM", 2.0, 1.0, "bytes", "x", "shrink it"), folder / "made", "result")
    sound = {f"saved/{path.name}": path.read_bytes() for path in (folder / "made").iterdir()}

    def make(chance: Chance) -> Case:
        name = chance.choice(sorted(sound))
        if name.endswith(".npz") and chance.random() < 0.2:
            content, must, change = archive(chance), True, "another archive"
        else:
            content, must, change = blob(sound[name], chance)
        return Case({**sound, name: content}, ["report", "saved"], must=must, change=f"{name} {change}")

    return Door(
        "saved results",
        350,
        make,
        ("wse_sim.serialize:read_json", "wse_sim.serialize:read_arrays"),
        Case(sound, ["report", "saved"]),
    )


def archive(chance: Chance) -> bytes:
    """Make a sound archive whose members are not arrays."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name in chance.sample(["0.npy", "a.txt", "data.pkl", "..", "x/"], chance.randint(1, 3)):
            out.writestr(name, chance.choice([b"", b"text", b"\x80\x04N.", b"\x93NUMPY"]))
    return made.getvalue()


def stores(folder: Path) -> Door:
    """Return the folder of a study: its JSON, its SQLite, and values in its tables."""
    import sqlite3

    from wse_sim.studies.evaluate import StudyRow
    from wse_sim.studies.store import Store

    spec = {"fixed": {"model": "fc-mnist"}, "grid": {"batch": [8, 16]}, "outputs": ["samples_per_s"]}
    with Store(folder / "made.sqlite") as store:
        study = store.study(spec)
        rows = [StudyRow(key, "done", {"samples_per_s": 9.0}, mode="pipelined", binding="x") for key in "ab"]
        store.put(rows, store.made_with({"code": "x"}))
        store.add_members(study, [(n, key, {"batch": 8 * n}) for n, key in enumerate("ab", 1)])
    link = {"store": "runs.sqlite", "study": study, "name": "x"}
    sound = (folder / "made.sqlite").read_bytes()
    columns = (("runs", "outputs"), ("runs", "low"), ("runs", "status"), ("members", "parameters"), ("members", "number"),
               ("studies", "spec"), ("studies", "id"), ("about", "value"), ("runs", "seconds"), ("runs", "binding"))  # fmt: skip
    odd = (
        "",
        "{",
        "[]",
        "NaN",
        '{"a": NaN}',
        "[" * 5000,
        '"x"',
        "1e999",
        "-1",
        b"\xff\xfe",
        None,
        '{"samples_per_s": "x"}',
        '{"samples_per_s": {}}',
    )

    whole = Case(
        {"study/study.json": json.dumps(link).encode(), "study/runs.sqlite": sound},
        ["study", "export", "study", "--format", "csv"],
    )

    def with_value(chance: Chance) -> bytes:
        path = folder / "changed.sqlite"
        path.write_bytes(sound)
        table, column = chance.choice(columns)
        db = sqlite3.connect(path)
        try:
            db.execute("PRAGMA foreign_keys=OFF")
            db.execute(f"UPDATE {table} SET {column}=?", (chance.choice(odd),))
            db.commit()
        except sqlite3.Error:
            pass  # the table does not take it: a sound store, then
        db.close()
        return path.read_bytes()

    def make(chance: Chance) -> Case:
        for left in Path("study").glob("*"):
            left.unlink()
        store_, link_ = sound, json.dumps(link).encode()
        how, must = chance.choice(("link", "store", "value", "value")), False
        if how == "link":
            link_, must, how = document(link, chance, is_json=True, open_at=tuple(link))
            must = must and how == "raw"
        else:
            store_ = with_value(chance) if how == "value" else blob(sound, chance)[0]
        words = chance.choice((["study", "export", "study", "--format", "csv"], ["study", "plot", "study"]))
        return Case({"study/study.json": link_, "study/runs.sqlite": store_}, words, must=must, change=how)

    return Door("folders of studies", 250, make, ("wse_sim.studies.folder:read_json",), whole)


def compiled(folder: Path) -> Door:
    """Return a compiled program: every change is refused, as its checksum is another."""
    from wse_sim.csl.compiler import CompiledProgram

    for name, text in (("layout.csl", LAYOUT), ("core.csl", CORE)):
        (folder / name).write_text(text)
    status, text = strangers.spoken(["cslc", "layout.csl", *FABRIC, "--params=size:4", "-o", "made_program"])
    assert status == 0, text
    out = folder / "made_program"
    sound = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def make(chance: Chance) -> Case:
        name = chance.choice(sorted(sound))
        content, _, change = blob(sound[name], chance)
        files = {f"program/{file}": data for file, data in {**sound, name: content}.items()}
        is_other = content.strip() != sound[name].strip()
        return Case(files, call=lambda: CompiledProgram.read(Path("program")), must=is_other and not name.endswith(".json"),
                    change=f"{name} {change}")  # fmt: skip

    whole = Case(
        {f"program/{file}": data for file, data in sound.items()},
        call=lambda: CompiledProgram.read(Path("program")),
    )
    return Door("compiled programs", 200, make, ("wse_sim.csl.compiler:CompiledProgram.read",), whole)


def exported(folder: Path) -> Door:
    """Return a `.pt2` file: its archive, and texts inside it."""
    import zipfile

    import torch

    from wse_sim.frontend import capture

    program = torch.export.export(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.zeros(2, 4),)
    )
    torch.export.save(program, folder / "made.pt2")
    sound = (folder / "made.pt2").read_bytes()
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def make(chance: Chance) -> Case:
        content, must, change = blob(sound, chance)
        if chance.random() < 0.7:
            name, must = chance.choice(sorted(members)), False
            part, _, change = blob(members[name], chance)
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                for other, data in members.items():
                    archive.writestr(other, part if other == name else data)
            content, change = buffer.getvalue(), f"{name} {change}"
        return Case(
            {"net.pt2": content}, call=lambda: capture.load_exported("net.pt2"), must=must, change=change
        )

    return Door(
        "exported programs",
        150,
        make,
        ("wse_sim.frontend.capture:load_exported",),
        Case({"net.pt2": sound}, call=lambda: capture.load_exported("net.pt2")),
    )


def checkpoints(folder: Path) -> list[Door]:
    """Return the checkpoints in HDF5 and of `torch.save`."""
    import torch

    from wse_sim.cstorch import checkpoint

    state = {"model": {"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, "step": 4, "rates": [0.1, 0.2]}
    checkpoint.save(state, folder / "made.mdl")
    torch.save(state, folder / "made.pt")

    def read() -> None:
        found = checkpoint.load("c.mdl", map_location="cpu")
        str(found)

    reader = ("wse_sim.cstorch.checkpoint:load",)
    return [
        blob_door(
            "checkpoints in HDF5", 200, (folder / "made.mdl").read_bytes(), "c.mdl", (), reader, call=read
        ),
        blob_door(
            "checkpoints of torch", 100, (folder / "made.pt").read_bytes(), "c.mdl", (), reader, call=read
        ),
    ]


# Words of commands

NO_NUMBERS = (
    "x",
    "",
    " ",
    "1_0",
    "½",
    "\u0661",
    "\uff11\uff12",
    "0x10",
    "1,5",
    "--",
    "1e",
    "None",
    "[]",
    "1 2",
    "\udcff",
    "true",
    "$(id)",
)
"""Texts that are not a number of any option."""


def words_of_commands() -> list[Door]:
    """Return generators for options, parameters of kernels, and lines of the CSL compiler."""
    return [option_values(), kernel_parameters(), compiler_lines()]


def option_values() -> Door:
    """Give a number's option an invalid value: the sentence must name the option, so it was read first."""
    from tests.doors.test_said_twice import _kinds, single_options

    numbers = [
        (path, one.opts[0]) for path, one in single_options() if _kinds(one) & {int, float} and not _kinds(one) & {str, tuple}
        and path[0] != "script"
    ]  # fmt: skip
    everything = [(tuple(command.split()), flag) for command, flag in options()]

    def make(chance: Chance) -> Case:
        if chance.random() < 0.7:
            (path, flag), value = chance.choice(numbers), chance.choice(NO_NUMBERS)
            words = [*path, f"{flag}={value}"]
            return Case({}, words, call=lambda: named(words, flag), must=True, change=value)
        (path, flag), value = (
            chance.choice(everything),
            chance.choice((*NO_NUMBERS, "9" * 400, "-1", "/dev/null/x", "a" * 400)),
        )
        return Case({}, [*path, NOWHERE, f"{flag}={value}"], change=value)

    return Door("options", 700, make, ("wse_sim.door:_usage",), Case({}, ["show", "models"]))


def named(words: Sequence[str], flag: str) -> None:
    """Run a command line; a refusal that does not name its option is a fault."""
    status, text = strangers.spoken(words)
    if status == 2 and flag in text and text.count("\n") == 1:
        raise WseError(text)
    raise AssertionError(f"status {status} of {words}: {text[-300:]}")


def kernel_parameters() -> Door:
    """Return the parameters of every kernel, by formula."""
    places = [(name, one) for name, command in kernel_commands().items() for one in command.params]
    values = ("0", "1e12", "inf", "0.3", "9" * 40, "1000000000", "-inf", "-1", "1e-9", "65536", *NO_NUMBERS)

    def make(chance: Chance) -> Case:
        (kernel, parameter), value = chance.choice(places), chance.choice(values)
        words = ["kernel", kernel, "--timing", "model", "--param", f"{parameter.name}={value}"]
        is_wrong = value in ("", "1_0", "½", "\u0661", "inf", "nan", "1 2") and value not in parameter.choices
        return Case({}, words, must=is_wrong, change=value)

    return Door(
        "parameters of kernels",
        450,
        make,
        ("wse_sim.kernels.contract.parameters:Parameter.read",),
        Case({}, ["kernel", "reduce", "--timing", "model", "--param", "cores=4"]),
    )


def compiler_lines() -> Door:
    """Return the lines of `cslc` in command files: words dropped, doubled, exchanged, replaced."""
    from wse_sim.csl.host import commands

    line = [
        "layout.csl",
        "--arch=wse2",
        *FABRIC,
        "--params=size:4,M:2",
        "--colors=c:3",
        "-o",
        "out",
        "--memcpy",
        "--channels=1",
    ]
    odd = ("", "--", "-o", "--params", "--params=", "--params=size:1_0", "--params=:", "--fabric-dims=9", "--fabric-dims=a,b",
           "--fabric-dims=99999999999,3", "--channels=-1", "--channels=½", "--arch=wse9", "--no-such", "x.csl", "\udcff", "--colors=c:99:1")  # fmt: skip

    def make(chance: Chance) -> Case:
        words = list(line)
        at, how = chance.randrange(len(words)), chance.choice(("drop", "double", "odd", "odd", "put"))
        words[at : at + (how != "put")] = {"drop": [], "double": [words[at]] * 2}.get(
            how, [chance.choice(odd)]
        )
        return Case(
            {},
            call=lambda: commands.parse_cslc(words),
            must=how == "double" and words[at].startswith("--") and "=" in words[at],
            change=" ".join(words),
        )

    return Door(
        "lines of cslc",
        350,
        make,
        ("wse_sim.csl.host.commands:parse_cslc",),
        Case({}, call=lambda: commands.parse_cslc(line)),
    )


def factories() -> Door:
    """Change words in a user's Python file: its file and line are named, and its status is never ours."""
    code = (
        b"import torch\n\n\ndef make():\n    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())\n"
        b"    return model, (torch.zeros(2, 4),)\n"
    )
    number = iter(range(10**9))

    def make(chance: Chance) -> Case:
        content, must, change = blob(code, chance)
        name = f"factory_{next(number)}.py"  # a module is read once
        return Case(
            {name: content},
            ["show", "model", f"{name}:make"],
            must=must or not parses(content),
            change=change,
        )

    return Door(
        "factories",
        120,
        make,
        ("wse_sim.frontend.api:loaded",),
        Case({"factory.py": code}, ["show", "model", "factory.py:make"]),
    )


def parses(code: bytes) -> bool:
    """Return whether Python itself takes a text for a program."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def all_doors(folder: Path) -> list[Door]:
    """Return every entry point; the folder is the current one and receives the sound files."""
    return [*descriptions(), *grammars(), *written(folder), *words_of_commands(), factories()]
