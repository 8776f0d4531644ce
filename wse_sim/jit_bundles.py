"""Named tuples of arrays that jitted functions pass to each other as one pointer.

numba passes an array as 5 to 9 arguments and a named tuple as those of all its arrays: 600 for the state of a machine,
in every call of every helper.  Most of the time of compilation went into them, and each call copied them.
Here the function that Python calls writes the arrays into a block of its stack once, and all others take its address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callconv import CPUCallConv
from numba.core.datamodel.models import PrimitiveModel
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.pythonapi import NativeValue, _UnboxContext
from numba.core.typing.typeof import typeof_impl
from numba.extending import lower_builtin, register_model, type_callable, unbox

if TYPE_CHECKING:
    from llvmlite.ir import IRBuilder
    from llvmlite.ir import Value as IRValue
    from numba.core.base import BaseContext
    from numba.core.typing import BaseContext as TypingContext
    from numba.core.typing import Signature

C = TypeVar("C", bound=type)
N = TypeVar("N", bound=tuple[object, ...])
_WORD = 8  # bytes; every field begins at a multiple of it
_ARRAY_WORDS = 5  # and one for the length and one for the stride of each dimension


class Bundle(types.NamedTuple):  # type: ignore[misc]
    """The type of a named tuple that is passed as a pointer; every field is an array, a number or a bundle."""

    def __init__(self, of_fields: tuple[types.Type, ...], cls: type) -> None:
        super().__init__(of_fields, cls)
        if not all(
            isinstance(kind, (types.Array, types.Number, types.Boolean, Bundle)) for kind in of_fields
        ):
            raise TypeError(f"{self.name}: every field must be an array, a number or a bundle")
        # The full name of all arrays would be part of the name of every function that takes the tuple.
        digest = hashlib.blake2s(f"{cls.__module__} {self.name}".encode(), digest_size=8).hexdigest()
        self.name = f"{cls.__name__}_{digest}"
        self.offsets: dict[str, int] = {}
        self.size = 0
        for field, kind in zip(self.fields, self.types, strict=True):
            self.offsets[field] = self.size
            self.size += _WORD * (_ARRAY_WORDS + 2 * kind.ndim if isinstance(kind, types.Array) else 1)

    @property
    def key(self) -> tuple[type, str]:
        """The named tuple and the types of its fields."""
        return self.instance_class, self.name


def by_pointer(cls: C) -> C:
    """Class decorator of a named tuple: jitted functions take its instances as one pointer."""

    @typeof_impl.register(cls)
    def of_instance(value: tuple[object, ...], context: object) -> Bundle:
        return Bundle(tuple(typeof_impl(field, context) for field in value), cls)

    return cls


def bundled(values: N) -> N:
    """A named tuple that jitted code has made of its parts, as other jitted functions take it; valid in this function."""
    return values


@type_callable(bundled)
def _type_of_bundled(context: TypingContext) -> Callable[[types.Type], types.Type | None]:
    def of_bundle(values: types.Type) -> types.Type | None:
        if isinstance(values, types.BaseNamedTuple):
            return Bundle(tuple(values), values.instance_class)  # type: ignore[arg-type, attr-defined]
        return None

    return of_bundle


@register_model(Bundle)
class _Pointer(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, models: object, kind: Bundle) -> None:
        super().__init__(models, kind, ir.IntType(8).as_pointer())


def _at(context: BaseContext, builder: IRBuilder, kind: Bundle, block: IRValue, field: str) -> IRValue:
    """Address of a field."""
    place = builder.gep(block, [ir.Constant(ir.IntType(64), kind.offsets[field])], inbounds=True)
    of_field = kind.types[kind.fields.index(field)]
    return builder.bitcast(place, context.get_data_type(of_field).as_pointer())


@lower_getattr_generic(Bundle)
def _lower_field(
    context: BaseContext, builder: IRBuilder, kind: Bundle, block: IRValue, field: str
) -> IRValue:
    of_field = kind.types[kind.fields.index(field)]
    place = _at(context, builder, kind, block, field)
    if isinstance(of_field, types.Array):
        found = builder.load(place)
    else:
        found = context.unpack_value(builder, of_field, place)
    return impl_ret_borrowed(context, builder, of_field, found)


@lower_builtin(bundled, types.BaseNamedTuple)
def _lower_bundled(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    kind = signature.return_type
    block = _block(builder, kind)
    for i, (field, of_field) in enumerate(zip(kind.fields, kind.types, strict=True)):
        value = builder.extract_value(args[0], i)
        context.pack_value(builder, of_field, value, _at(context, builder, kind, block, field))
    return block


def _block(builder: IRBuilder, kind: Bundle) -> IRValue:
    """Room for a bundle on the stack of the function."""
    room = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), kind.size // _WORD))
    return builder.bitcast(room, ir.IntType(8).as_pointer())


@unbox(Bundle)
def _unbox(kind: Bundle, instance: IRValue, c: _UnboxContext) -> NativeValue:
    """Write the fields of an instance into a block of the stack."""
    block = _block(c.builder, kind)
    is_error = cgutils.alloca_once_value(c.builder, cgutils.false_bit)
    cleanups = []
    for i, (field, of_field) in enumerate(zip(kind.fields, kind.types, strict=True)):
        native = c.unbox(of_field, c.pyapi.tuple_getitem(instance, i))
        c.context.pack_value(c.builder, of_field, native.value, _at(c.context, c.builder, kind, block, field))
        with c.builder.if_then(native.is_error, likely=False):
            c.builder.store(cgutils.true_bit, is_error)
        if native.cleanup is not None:
            cleanups.append(native.cleanup)

    def cleanup() -> None:
        for one in reversed(cleanups):
            one()

    return NativeValue(block, cleanup=cleanup if cleanups else None, is_error=c.builder.load(is_error))


# From LLVM 21 on, the third has the name of the second.
_ATTRIBUTES = [
    name
    for name in ("noalias", "captures(none)", "nocapture", "nonnull")
    if name in ir.values.ArgumentAttributes._known
]
_decorate = CPUCallConv.decorate_function


def _decorate_bundles(
    convention: CPUCallConv,
    function: ir.Function,
    names: list[str],
    kinds: tuple[types.Type, ...],
    noalias: bool = False,
) -> None:
    """Nothing that a function does changes a bundle: its fields are read once, not again after every store."""
    _decorate(convention, function, names, kinds, noalias)
    bundles = {
        f"arg.{name}": kind.size for name, kind in zip(names, kinds, strict=False) if isinstance(kind, Bundle)
    }
    for argument in function.args:
        size = bundles.get(argument.name)
        if size is not None:
            for attribute in _ATTRIBUTES:
                argument.add_attribute(attribute)
            argument.attributes.dereferenceable = size


CPUCallConv.decorate_function = _decorate_bundles  # type: ignore[method-assign]
