"""How numba compiles functions that jitted callers alone call: without separate machine code.

numba links into every function the code of all that it calls, directly and through others, optimises the whole and
makes machine code of it: a helper three calls below a loop is optimised four times.  Python cannot call a helper, so
its own machine code would never run.  Here a helper is typed, lowered and kept on disk as LLVM's code; the function
that Python calls takes it in and optimises it.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import CPUCodegen, JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase, CompileResult, DefaultPassBuilder, compile_result
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Environment
from numba.core.typing import Signature

_KIND = "taken in"  # numba's own kinds are "bitcode" and "object"
# Library, description, environment, signature, whether of objects, lifted loops, types, what loading runs, environments.
Stored = tuple[
    tuple[str, str, bytes], PythonFunctionDescriptor, Environment, Signature, bool, tuple[()], str,
    list[Callable[[], None]], tuple[Environment, ...],
]  # fmt: skip
# How functions that call each other in a circle name each other.  numba stores such code and crashes when it loads it.
_UNRESOLVED = ".numba.unresolved$"


class _NoEngine:
    """A helper has no address, so nothing is stored at it."""

    def set_env(self, name: str, environment: object) -> None:
        """No machine code would read it; callers set the environments of all that they take in."""


class TakenIn(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that callers take in."""

    @property
    def codegen(self) -> _NoEngine:
        """The object that stores the environment of the function."""
        return _NoEngine()

    def _optimize_final_module(self) -> None:
        """Leave the code as it is: callers optimise it."""
        if any(gv.name.startswith(_UNRESOLVED) for gv in self._final_module.global_variables):
            raise RecursionError(
                f"{self.name}: jitted helpers call each other recursively; replace one call by a loop"
            )

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Null: there is no machine code."""
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, object]:
        """Name, kind and LLVM's code."""
        return self.name, _KIND, self._get_module_for_linking().as_bitcode()

    @classmethod
    def stored(cls, codegen: CPUCodegen, name: str, bitcode: bytes) -> TakenIn:
        """The library that was stored."""
        library = cls(codegen, name)
        library._final_module = llvm.parse_bitcode(bitcode)
        library._shared_module = library._final_module
        library._finalize_final_module()
        return library


class HelperCompiler(CompilerBase):  # type: ignore[misc]
    """numba's passes with a library of that kind."""

    def define_pipelines(self) -> list[PassManager]:
        """The passes of any jitted function."""
        self.state.library = TakenIn(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


class CallerCompiler(Compiler):  # type: ignore[misc]
    """numba's passes for a function that Python calls."""

    def compile_extra(self, func: Callable[..., object]) -> CompileResult:
        """Compile; then inlined helpers find their environments, as in code loaded from disk."""
        result = super().compile_extra(func)
        codegen = result.library.codegen
        for environment in result._find_referenced_environments():
            if codegen._engine.get_global_value_address(environment.env_name):
                codegen.set_env(environment.env_name, environment)
        return result


class HelperStored(CompileResultCacheImpl):  # type: ignore[misc]
    """Storage of compiled helpers on disk."""

    def rebuild(self, target_context: CPUContext, payload: Stored) -> CompileResult:
        """A compiled helper from what is stored of it."""
        (name, _, data), fndesc, environment, signature, objectmode, lifted, types, reloads, envs = payload
        for again in reloads or ():
            again()
        library = TakenIn.stored(target_context.codegen(), name, data)
        return compile_result(
            typing_context=target_context.typing_context,
            target_context=target_context,
            entry_point=target_context.get_executable(library, fndesc, environment),
            type_annotation=types,
            signature=signature,
            objectmode=objectmode,
            lifted=lifted,
            fndesc=fndesc,
            library=library,
            environment=environment,
            reload_init=reloads,
            referenced_envs=envs,
        )
