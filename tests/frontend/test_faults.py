"""Faults are sentences with the user's line, the reason and the remedy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontend.bad_programs import PROGRAMS, Large  # noqa: E402
from wse_sim.errors import ConfigError, ModelError, UnsupportedOpError  # noqa: E402
from wse_sim.frontend import add_training, load_model, lower  # noqa: E402
from wse_sim.frontend.faults import sentence_of  # noqa: E402


@pytest.mark.thinned(35)
@pytest.mark.parametrize(("module", "args", "parts"), [p[1:] for p in PROGRAMS], ids=[p[0] for p in PROGRAMS])
def test_bad_program(module: Any, args: Any, parts: tuple[str, ...]) -> None:
    """Each program of the collection gives its own sentence, on one line."""
    with pytest.raises(ModelError) as fault:
        lower(module, args)
    for part in parts:
        assert part in str(fault.value)
    assert "\n" not in str(fault.value)


def test_autocast_around_the_capture_is_refused() -> None:
    """Torch ignores it silently, so users would believe that it worked."""
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ModelError, match=r"autocast is on .* inside forward\(\)"),
    ):
        lower(torch.nn.Linear(4, 4), (torch.randn(2, 4),))


def test_autocast_inside_forward_is_fine() -> None:
    """Autocast inside forward is read; its casts are determined by the precision level."""

    class Inside(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.fc(x)

    assert lower(Inside(), (torch.randn(2, 4),)).forward_flops == 2 * 2 * 4 * 4


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("gpt2-smal", "did you mean gpt2-small"),
        ("no-such-thing-at-all", "'wse-sim show models' lists the names"),
        ("missing_package.module:factory", "no module named 'missing_package'"),
        ("json:nothing", "module json has no 'nothing'"),
        ("json:dumps", "cannot be called without arguments"),
        ("no-file.py:make", "there is no file no-file.py"),
        ("json.py:", "does not name a factory"),
        ("/nowhere/model.pt2", "does not exist"),
        ("hf:/nowhere/config.json", "cannot be read"),
        ("/nowhere/model.yaml", "cannot be read"),
    ],
)
def test_what_cannot_be_found(spec: str, sentence: str) -> None:
    """The error for a wrong name states what to give instead."""
    with pytest.raises((ModelError, ConfigError), match=sentence):
        load_model(spec)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hiden": 5}, "key 'hiden' is unknown; the keys are family"),
        ({"layers": 0}, "key 'model.layers'"),
        ({"layers": "many"}, "key 'model.layers'.*many"),
        ({"heads": 7}, "hidden 64 is not a multiple of heads 7"),
        ({"kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        ({"vocab": None}, "needs 'vocab'"),
        ({"family": "encodr"}, "key 'model.family'"),
        ({"mlm_positions": 99}, "mlm_positions 99 exceeds seq 8"),
        ({"dropout": 1.5}, "key 'model.dropout'"),
    ],
)
def test_impossible_parameters(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    """A model file's fault names the file and the key."""
    import yaml

    model = {
        "family": "encoder",
        "layers": 1,
        "hidden": 64,
        "heads": 4,
        "ffn": 8,
        "vocab": 9,
        "seq": 8,
    } | changes
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "source": "a test", "model": model}))
    with pytest.raises(ConfigError, match=sentence) as fault:
        load_model(str(file))
    assert str(file) in str(fault.value)


def test_wrong_options() -> None:
    """The error for an option that does not exist lists those that do."""
    tiny = {"family": "mlp", "layers": 1, "hidden": 4, "input": 4, "classes": 2}
    with pytest.raises(
        ModelError, match="optimizer 'lion' is unknown; use one of sgd, momentum, adam, adamw"
    ):
        load_model(tiny, training=True, optimizer="lion")
    with pytest.raises(ModelError, match="recompute policy 'some'"):
        load_model(tiny, training=True, recompute="some")
    with pytest.raises(ConfigError, match="precision 'fp8' is unknown"):
        load_model(tiny, precision="fp8")
    with pytest.raises(ModelError, match="batch 0 is not positive"):
        load_model(tiny, batch=0)
    with pytest.raises(ModelError, match="training graph already"):
        add_training(load_model(tiny, training=True))


def test_nothing_to_train() -> None:
    """A model without weights cannot be trained."""
    with pytest.raises(ModelError, match="no parameters"):
        lower(torch.nn.ReLU(), (torch.randn(2, 3),), training=True)


def test_quantised_file_formats(tmp_path: Path) -> None:
    """The error for a file that is not an exported program states how to write one."""
    file = tmp_path / "broken.pt2"
    file.write_bytes(b"not a program")
    with pytest.raises(ModelError, match=r"torch\.export\.save"):
        load_model(str(file))


def test_the_collection_is_large() -> None:
    """There are at least 25 programs, and an unknown operator is its own type of fault."""
    assert len(PROGRAMS) >= 25
    with pytest.raises(UnsupportedOpError):
        lower(*next((m, a) for n, m, a, _ in PROGRAMS if n == "UnknownOperator"))


def test_a_configuration_of_transformers_given_as_a_file_says_how_to_give_it(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match=f"a configuration of transformers is hf:{file}"):
        load_model(str(file))


def test_a_fault_in_a_node_of_the_graph_names_the_line_that_it_comes_from() -> None:
    """Torch prints the frames of the model, outermost first, and then its own."""
    fault = RuntimeError(
        "boom\n\nWhile executing %add : call_function\nOriginal traceback:\n"
        'File "/home/a/net.py", line 3, in forward\n    x = self.part(x)\n'
        'File "/home/a/part.py", line 7, in forward\n    return x + self.bias\n'
        'File "/lib/torch/nn/functional.py", line 9, in add\n    return add(x)\n'
    )
    assert sentence_of(fault, "Net").startswith(
        "/home/a/part.py:7: return x + self.bias: torch cannot capture"
    )
    assert sentence_of(RuntimeError("boom"), "Net").startswith("model Net: torch cannot capture")


def chosen_places(y: Any) -> Any:
    twice = y * 2
    return twice.nonzero()  # here


def widest(y: Any) -> Any:
    longest = y.argmax(-1).max()
    return y.new_zeros(len(y), longest + 1)  # here


def orthogonal(y: Any) -> Any:
    shifted = y + 1
    return torch.linalg.qr(shifted)[0]  # here


class Helped(Large):
    """Computes in a function that is not called forward()."""

    def __init__(self, helper: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.helper = torch.nn.Linear(4, 4), helper

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return self.helper(y)


@pytest.mark.parametrize("helper", [chosen_places, widest, orthogonal])
def test_a_fault_in_a_helper_function_is_reported_at_its_line(helper: Callable[[Any], Any]) -> None:
    lines, first = inspect.getsourcelines(helper)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(ModelError, match=rf"test_faults\.py:{line}: return "):
        lower(Helped(helper), (torch.randn(4, 4),))
