"""Parts of numba's compiler in Python that take much of the time of compilation, replaced by faster ones with the same results."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from weakref import WeakKeyDictionary

from llvmlite import ir as llvm_ir
from llvmlite.binding import ffi
from numba.core import analysis, ir, types
from numba.core.base import BaseContext
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction
from numba.core.typing import Context, Signature


def _are_flags_equal(flags: TargetConfig, others: object) -> bool:
    """Return whether every compile flag is the same, set or default.

    numba compares the flags of two functions for every call whose type it infers.  Its own method builds a dictionary
    of 27 properties for each, which takes 6 to 15 % of the time of compilation.
    """
    if not isinstance(others, TargetConfig):
        return NotImplemented
    own, other = flags._values, others._values
    if own == other and type(flags) is type(others):
        return True
    if flags.options.keys() != others.options.keys():  # type: ignore[attr-defined]
        return False
    return all(getattr(flags, name) == getattr(others, name) for name in own.keys() | other.keys())


def _flags_hash(flags: TargetConfig) -> int:
    """Return the hash of the names of all flags, as numba does, without reading their values."""
    return hash(tuple(sorted(flags.options)))  # type: ignore[attr-defined]


TargetConfig.__eq__, TargetConfig.__hash__ = _are_flags_equal, _flags_hash  # type: ignore[method-assign]


_NOTHING, _VARIABLE, _INSTRUCTION, _SEQUENCE, _MAPPING = range(5)
_KINDS: dict[type, int] = {}


def _kind_of(cls: type) -> int:
    for kind, bases in (
        (_VARIABLE, ir.Var),
        (_INSTRUCTION, ir.Inst),
        (_SEQUENCE, (list, tuple)),
        (_MAPPING, dict),
    ):
        if issubclass(cls, bases):
            return kind
    return _NOTHING


def _collect(value: object, found: list[ir.Var]) -> None:
    cls = type(value)
    kind = _KINDS.get(cls)
    if kind is None:
        kind = _KINDS[cls] = _kind_of(cls)
    if kind == _NOTHING:
        return
    if kind == _VARIABLE:
        found.append(value)  # type: ignore[arg-type]
    elif kind == _INSTRUCTION:
        found.extend(value.list_vars())  # type: ignore[attr-defined]
    else:
        for one in value if kind == _SEQUENCE else value.values():  # type: ignore[attr-defined, union-attr]
            _collect(one, found)


def _variables_of(instruction: ir.Inst, value: object) -> list[ir.Var]:
    """Return the variables of an operand of an instruction; numba looks for them nine times in each."""
    found: list[ir.Var] = []
    _collect(value, found)
    return found


ir.Inst._rec_list_vars = _variables_of  # type: ignore[method-assign]


def _uses_and_definitions(blocks: Mapping[int, ir.Block]) -> object:
    """Return the variables that each block reads before it assigns them, and those that it assigns.

    numba lists the variables of the right-hand side of an assignment twice.
    """
    uses: dict[int, set[str]] = {}
    definitions: dict[int, set[str]] = {}
    for offset, block in blocks.items():
        used, defined = uses.setdefault(offset, set()), definitions.setdefault(offset, set())
        for statement in block.body:
            if type(statement) in analysis.ir_extension_usedefs:
                analysis.ir_extension_usedefs[type(statement)](statement, used, defined)
            elif isinstance(statement, ir.Assign):
                read: list[ir.Var] = []
                _collect(statement.value, read)
                names = {variable.name for variable in read}
                target = statement.target.name
                if target not in names:
                    defined.add(target)
                used |= (names | {target}) - defined
            else:
                used.update(name for name in map(_name, statement.list_vars()) if name not in defined)
    return analysis._use_defs_result(usemap=uses, defmap=definitions)


_name = attrgetter("name")
analysis.compute_use_defs = _uses_and_definitions


_size_of = BaseContext.get_abi_sizeof


def _kept_size(context: BaseContext, kind: llvm_ir.Type) -> int:
    """Return the bytes of a type; LLVM parses a module for each question."""
    kept = context.__dict__.setdefault("_kept_sizes", {})
    name = str(kind)
    if name not in kept:
        kept[name] = _size_of(context, kind)
    return int(kept[name])


BaseContext.get_abi_sizeof = _kept_size  # type: ignore[method-assign]


_call_type = BaseFunction.get_call_type
_SETTLED: dict[types.Type, bool] = {}
_KEPT: WeakKeyDictionary[BaseFunction, dict[tuple[Context, tuple[types.Type, ...]], Signature]] = (
    WeakKeyDictionary()
)


def _is_settled(kind: types.Type) -> bool:
    """Return whether a type is a number, or arrays and tuples of numbers: what is done with it depends on it alone."""
    if kind not in _SETTLED:
        if isinstance(kind, types.Array):
            _SETTLED[kind] = _is_settled(kind.dtype)
        elif isinstance(kind, types.BaseTuple):
            _SETTLED[kind] = all(_is_settled(one) for one in kind.types)  # type: ignore[attr-defined]
        else:
            _SETTLED[kind] = isinstance(
                kind, (types.Number, types.Boolean, types.IntegerLiteral, types.SliceType)
            )
    return _SETTLED[kind]


def _kept_call_type(
    function: BaseFunction, context: Context, args: tuple[types.Type, ...], kws: Mapping[str, types.Type]
) -> Signature | None:
    """Return the signature of a call; numba tries all that could be meant by an operator, ten for a sum, in every use of it.

    Kept are those of operators and functions that numba lowers itself.
    """
    if kws or not all(map(_is_settled, args)):
        return _call_type(function, context, args, kws)
    kept = _KEPT.setdefault(function, {})
    chosen: dict[object, object] = function._impl_keys  # type: ignore[attr-defined]
    found = kept.get((context, args))
    if found is not None:
        chosen[found.args] = function.typing_key
        return found
    found = _call_type(function, context, args, kws)
    if found is not None and chosen.get(found.args) is function.typing_key:
        kept[context, args] = found
    return found


BaseFunction.get_call_type = _kept_call_type  # type: ignore[method-assign, assignment]

# numba tells of every call of LLVM when it begins and when it ends, and nobody here listens.
for _begin, _end in tuple(ffi.lib._lock._cblist):
    ffi.unregister_lock_callback(_begin, _end)
