"""Converts faults of a capture to sentences with the user's line, the reason and the remedy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path

from wse_sim.user_code import not_installed

_READ = "Tensor.item"

OWN_GRADIENT = (
    "forward() runs a backward pass, which leaves gradients in attributes",
    "take torch.autograd.grad(result, inputs, create_graph=True), or leave the backward pass to training=True",
)

LINEARIZED = (
    "torch.func.linearize traces another program, which a capture cannot contain",
    "call torch.func.jvp(f, primals, tangents), which gives the value and the product",
)

CHECKED = "a check that the model makes fails for the example arguments"
PASS = "give arguments that pass it"
# (pattern of torch's message, reason, remedy); the first match counts. Some are used by their position below.
_RULES: tuple[tuple[str, str, str], ...] = (
    (
        r"Could not extract specialized (?:integer|float)|item\(\) cannot be called on meta|Tensor\.item",
        "a tensor's value is read into Python, where a compiled program does not have it",
        "keep it as a tensor",
    ),
    (
        r"data-dependent|GuardOnDataDependent|DataDependentOutput",
        "control flow depends on the values of a tensor, which a compiled program does not know",
        "compute both sides and choose with torch.where",
    ),
    (
        r"no fake impl|register_fake|fake impl registered|Meta kernel|meta implementation",
        "a custom operator has no fake implementation, so its result shape is unknown",
        "register one with torch.library.register_fake",
    ),
    (
        r"DynamicCache|StaticCache|cache_utils|EncoderDecoderCache|[A-Za-z]Cache'?>",
        "the result holds a cache object",
        "pass use_cache=False",
    ),
    (
        r"in output, which is not a known type|Unsupported output type|not a known type",
        "the result is an object of a class that torch cannot decompose",
        "return tensors, tuples, lists or dicts of tensors",
    ),
    (
        r"\.numpy\(\) is not supported|can't convert.*numpy|numpy\(\)",
        "a tensor is turned into a numpy array",
        "stay with torch operations",
    ),
    (
        r"quantized|qint8|quint8|QuantizedCPU",
        "quantised tensor types are not supported",
        "use PT2E quantize/dequantize operators or int8 weights",
    ),
    (
        r"nested_tensor|NestedTensor",
        "nested tensors have rows of lengths that depend on values",
        "give a padded tensor and a mask",
    ),
    (r"sparse|compressed tensor", "sparse tensors are not supported", "call to_dense() first"),
    (
        r"mat1 and mat2|reduction dim|values to unpack|Attempting to broadcast|size mismatch|must match the size|shape .* is invalid|shapes cannot be multiplied|[Ee]xpected .* channels|not compatible",
        "the shapes do not fit",
        "check the example arguments",
    ),
    (
        r"Expected cond to be True|torch\._check",
        CHECKED,
        PASS,
    ),
    (
        r"missing (?:\d+|a) required|takes .* positional argument|too many positional|unexpected keyword|got multiple values",
        "the example arguments do not fit forward()",
        "give the arguments that forward() takes",
    ),
    (
        r"'NoneType' object (?:is not|has no|does not)|object of type 'NoneType'|got \([^()]*NoneType|must be (?!Tensor)\w+, not NoneType",
        "forward() has None where it needs a value",
        "give the argument that is missing, or check what forward() hands on",
    ),
    (
        r"must be Tensor, not",
        "an operator of torch is given something other than a tensor",
        "check the example arguments and what forward() hands on",
    ),
    (
        r"does not require grad|does not have a grad_fn|Cannot backprop through mirrored meta",
        *OWN_GRADIENT,
    ),
    (r"argument #1 'indices'", "the indices of an embedding are not integers", "give a torch.long tensor"),
    (r"Expected bool or tensor|torch\.cond", "torch.cond has branches chosen by data", "use torch.where"),
)


def read_sentence(*, is_test: bool) -> str:
    """Return reason and remedy for a value that Python reads, in a test or as a number."""
    _, reason, remedy = _RULES[1 if is_test else 0]
    return f"{reason}; {remedy}"


class GradientAskedError(Exception):
    """forward() requested a gradient in a capture without gradients."""


def asked_for_gradient(fault: BaseException) -> bool:
    """Return whether torch failed because forward() requests a gradient.

    Inside torch.vmap the error is a missing attribute.
    """
    now: BaseException | None = fault
    seen = list[BaseException]()
    while now is not None and now not in seen:
        if isinstance(now, GradientAskedError) or re.search(_ASKED, str(now)):
            return True
        seen.append(now)
        now = now.__cause__ or now.__context__
    return False


_ASKED = (
    r"'Tensor' object has no attribute 'constant'|does not require grad|does not have a grad_fn|mirrored meta"
)


def holds_cache(fault: BaseException) -> bool:
    """Return whether torch failed because of a cache object of transformers."""
    return re.search(_RULES[3][0], str(fault)) is not None


_SLIPS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RecursionError, TypeError)


def raised_here(fault: BaseException) -> bool:
    """Return whether a fault is a bug of the frontend: a Python error raised in one of its own lines.

    Lines that call the model's functions do not count, nor do the errors that torch raises for a model
    (RuntimeError).
    """
    last = traceback.extract_tb(fault.__traceback__)[-1:]
    ours = any(frame.filename.startswith(str(Path(__file__).parent)) for frame in last)
    handed_on = any(
        "func(*" in (frame.line or "") or frame.filename.endswith("expansions.py") for frame in last
    )
    return ours and not handed_on and isinstance(fault, _SLIPS)


_OPERATORS: dict[str, tuple[str, str]] = {
    "dynamic": (
        "the shape of a result depends on values",
        "use fixed shapes: torch.where with a mask instead of boolean indexing or nonzero, and no Dim.AUTO",
    ),
    "item": ("a tensor's value is read into Python by .item(), float() or tolist()", "keep it as a tensor"),
    "_local_scalar_dense": (
        "a tensor's value is read into Python by .item(), float() or tolist()",
        "keep it as a tensor",
    ),
    "cond": ("torch.cond chooses a branch by data", "compute both branches and choose with torch.where"),
    "while_loop": ("a while_loop's length depends on data", "use a loop with a fixed number of iterations"),
    "flat_apply": (
        "a torch.autograd.Function is kept whole by torch's allow_in_pre_dispatch_graph",
        "leave out this decorator of its apply()",
    ),
    "mutable": (
        "the operator changes its input in place and has no functional form",
        "use the out-of-place form",
    ),
    "sym_size": (
        "the shape of a result depends on values or on a dynamic dimension",
        "export with fixed shapes",
    ),
}


UNKNOWN = "torch cannot capture this"
EAGER = "forward() also fails without a capture"
FITTING = (
    "compare the sizes of the model with the example arguments, and give all arguments that forward() takes"
)
REASONS = (
    *(reason for _, reason, _ in _RULES),
    *(reason for reason, _ in _OPERATORS.values()),
    UNKNOWN,
    EAGER,
)
"""Beginnings of the reason in a sentence, after the place and the line of code."""


_NO_VALUES = r"[Ff]ake|meta tensor|not allocated"
"""Messages of torch about tensors without values."""


def fails_alike(fault: BaseException, run: Callable[[], object]) -> bool:
    """Return whether `run`, which does without a capture, also raises an error in the same line of the user.

    Errors because a value is unknown do not count.
    """
    try:
        run()
    except Exception as other:  # of any type: the model's own
        text = f"{type(other).__name__}: {other}"
        unknown = any(re.search(pattern, text) for pattern in (_NO_VALUES, *(rule[0] for rule in _RULES[:3])))
        return not unknown and _user_frame(other) == _user_frame(fault) != ""
    return False


def sentence_of(fault: BaseException, model: str, line: str = "", *, is_eager: bool = False) -> str:
    """Return torch's error on `model` as one sentence with the user's line, if it is known.

    `line` overrides the line that the traceback and torch's message name. `is_eager` states that forward() also fails
    without a capture.
    """
    text = f"{type(fault).__name__}: {fault}"
    where = line or _user_frame(fault) or _caused_by(text) or f"model {model}"
    if isinstance(fault, ModuleNotFoundError) and fault.name:
        return f"{where}: {not_installed(fault.name)}"
    if re.search(_RULES[1][0], text) and re.search(r"\b(?:float|int|range)\(|\.item\(\)|\.tolist\(\)", where):
        text = _READ
    for pattern, reason, remedy in _RULES:
        if re.search(pattern, text):
            detail = _detail(pattern, text)
            return f"{where}: {reason}{detail}; {remedy}"
    first = next((line.strip() for line in str(fault).splitlines() if line.strip()), type(fault).__name__)
    is_check = isinstance(fault, AssertionError) or re.search(r": (?:raise|assert)\b", where)
    if is_check and not isinstance(fault, NotImplementedError):
        return f"{where}: {CHECKED} ({type(fault).__name__}: {first.rstrip('.')}); {PASS}"
    if is_eager:
        return f"{where}: {EAGER} ({type(fault).__name__}: {first.rstrip('.')}); {FITTING}"
    return f"{where}: {UNKNOWN} ({type(fault).__name__}: {first.rstrip('.')}); rewrite this line with static tensor operations"


def _detail(pattern: str, text: str) -> str:
    if "fake impl" in pattern:
        match = re.search(r"(?:CustomOpDef\(|for )([\w:.]+)", text)
        return f" ({match[1]})" if match else ""
    if any(part in pattern for part in ("mat1", "required", "known type", "must be Tensor", "NoneType")):
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return f" ({first.partition(': ')[2].rstrip('.')[:160]})"
    return ""


def unwanted_operator(kind: str, operator: str, source: str) -> str:
    """Return the sentence for an operator that a static machine cannot run."""
    reason, remedy = _OPERATORS.get(
        kind,
        (
            f"operator {operator} gives a number that is known only at run time",
            "use tensors and fixed shapes",
        ),
    )
    return f"{source or operator}: {reason}; {remedy}"


def _user_frame(fault: BaseException) -> str:
    """Return the innermost frame of the model in the traceback of a fault or of its causes, or "".

    Frames of torch and of the frontend are skipped, and so are the frames outside the frontend that called
    it.
    """
    here = str(Path(__file__).parent)
    chain: list[BaseException] = []
    now: BaseException | None = fault
    while now is not None and now not in chain:
        chain.append(now)
        now = now.__cause__ or now.__context__
    for item in reversed(chain):
        frames = traceback.extract_tb(item.__traceback__)
        ours = [i for i, frame in enumerate(frames) if frame.filename.startswith(here)]
        for frame in reversed(frames[ours[0] + 1 :] if ours else frames):
            outside = not frame.filename.startswith((here, "<")) and "/torch/" not in frame.filename
            if outside and not any(name in frame.filename for name in _HELPERS):
                return f"{frame.filename}:{frame.lineno}: {(frame.line or '').rstrip(' :')}"
    return ""


_HELPERS = ("contextlib", "functools.py", "inspect.py", "copyreg.py", "/copy.py")


def _caused_by(text: str) -> str:
    """Return the line that torch's message names as the origin of a node; "" if it names none."""
    match = re.search(r"Caused by: .*?\(([^()]+?:\d+)", text)
    if match:
        return match[1]
    _, _, trace = text.partition("Original traceback:")
    frames = re.findall(r'File "([^"<]+)", line (\d+), in \S+\n\s*(.*)', trace)
    own = [frame for frame in frames if "/torch/" not in frame[0]]
    return "{}:{}: {}".format(*own[-1]).rstrip(" :") if own else ""
