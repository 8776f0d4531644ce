"""Uses of private torch API are in the files of a capture; these tests show what a new torch changed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import wse_sim.frontend  # noqa: E402
from tests.frontend.families import FAMILIES  # noqa: E402
from wse_sim.frontend import capture  # noqa: E402
from wse_sim.frontend.parameters import parse_parameters  # noqa: E402
from wse_sim.frontend.zoo import build  # noqa: E402


def test_private_names_are_used_in_the_files_of_a_capture_only() -> None:
    """Some files depend on torch's tracer; no other file names anything of torch that starts with an underscore."""
    folder = Path(wse_sim.frontend.__file__).parent
    private = re.compile(r"\btorch(?:\.\w+)*\._[a-z]\w*|from torch(?:\.\w+)*\._|from torch\._")
    found = {file.name for file in folder.glob("*.py") if private.search(file.read_text())}
    assert found == {
        "capture.py",
        "program_reader.py",
        "capture_inputs.py",
        "watch.py",
        "eager_types.py",
        "branch_folding.py",
        "known_values.py",
        "torch_flops.py",
        "unread.py",
        "forward_gradients.py",
        "decompositions.py",
        "calls.py",
        "parts.py",
        "functional.py",
        "torch_state.py",
        "function_definitions.py",
        "scalar_indices.py",
        "example_values.py",
    }


def test_private_names_exist() -> None:
    """Each private name that the capture needs is listed with its purpose."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # weights without memory

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    weight = FakeTensor(mode, torch.empty(2, device="meta"), torch.device("cpu"))
    weight._is_param = True
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.device.type == "cpu"
    assert torch._ops.OpOverload  # operator names
    assert torch._ops.HigherOrderOperator  # branches and loops
    from torch._decomp import decomposition_table  # what operators without a kernel consist of
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler  # scalar tensors as indices
    from torch._subclasses.functional_tensor import FunctionalTensor  # values that a tracer wraps
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode  # modes left behind
    from torch.utils._python_dispatch import (
        _disable_current_modes,  # real values of the example's masks
        _get_current_dispatch_mode_stack,
    )

    assert _NonStrictTorchFunctionHandler._override
    with torch.overrides.TorchFunctionMode() as entered:
        assert _get_current_function_mode_stack()[-1] is entered
    with mode:
        assert _get_current_dispatch_mode_stack()[-1] is mode
    assert _pop_mode
    assert _push_mode
    assert torch._GLOBAL_DEVICE_CONTEXT is not None  # the default device
    assert torch.ops.aten.addmv.default in decomposition_table
    from torch import _VF  # packed sequences
    from torch._dynamo import _trace_wrapped_higher_order_op
    from torch.nn.attention import flex_attention

    assert _VF._pack_padded_sequence
    assert _VF._pad_packed_sequence
    assert flex_attention.flex_attention_hop
    assert flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG is False
    assert _trace_wrapped_higher_order_op.mod_index  # tables of masks
    assert torch._C._functorch.peek_interpreter_stack() is None  # whether torch.func.jvp runs
    assert FunctionalTensor
    assert _disable_current_modes
    assert torch._from_functional_tensor
    assert torch._C.DisableTorchFunction
    from torch.fx.traceback import annotate  # what runs under no_grad

    assert annotate
    from torch.fx.proxy import TracerBase  # lines of helper functions

    assert TracerBase._filter_traceback_frames
    schema = torch.ops.aten.relu_.default._schema  # in-place operators
    assert schema.is_mutable
    assert schema.name == "aten::relu_"


# Operators of a two-layer model as torch 2.13 captures them: a change here comes before a change of FLOPs.
GOLDEN = {
    "gpt": {
        "linear": 9,
        "layer_norm": 5,
        "scaled_dot_product_attention": 2,
        "gelu": 2,
        "embedding": 2,
        "dropout": 5,
    },
    "llama": {
        "linear": 11,
        "rms_norm": 5,
        "scaled_dot_product_attention": 2,
        "silu": 2,
        "embedding": 1,
        "neg": 4,
    },
    "resnet": {
        "conv2d": 20,
        "batch_norm": 20,
        "relu": 17,
        "max_pool2d": 1,
        "adaptive_avg_pool2d": 1,
        "linear": 1,
    },
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", GOLDEN)
def test_captured_operators(name: str) -> None:
    """Composite operators stay complete, and every node has its module and line."""
    module, args = build(parse_parameters(FAMILIES[name]))
    trace = capture.trace_module(module, args)
    calls = [n for n in trace if n.kind == "call"]
    counts = Counter(n.op for n in calls)
    assert {op: counts[op] for op in GOLDEN[name]} == GOLDEN[name]
    assert all(n.source for n in calls)
    assert sum(bool(n.layer) for n in calls) > len(calls) // 2
