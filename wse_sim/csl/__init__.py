"""CSL: the language of the wafer-scale engine, compiled to bytecode for the register cores of
:mod:`wse_sim.fabric.vm`.

    program = compile_program("layout.csl", arch="wse2", params={"M": 4}, memcpy=True, out="out")
"""

from wse_sim.csl.compiler import CompiledProgram, Export, compile_program
from wse_sim.csl.diagnostics import CslError

__all__ = ["CompiledProgram", "CslError", "Export", "compile_program"]
