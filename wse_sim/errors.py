"""The tree of input faults.

Every message is one sentence: the offending value, the limit, the remedy.  A model that does not
fit is not an error but a result (:class:`wse_sim.compiler.plan.Infeasible`).
"""

from __future__ import annotations


class WseError(Exception):
    """Base of every fault that the user's input can cause (exit status 2).

    Example
    -------
    >>> import wse_sim
    >>> try:
    ...     wse_sim.load_model("gpt2-smal")
    ... except WseError as fault:
    ...     print(fault)
    model 'gpt2-smal' is not a known name, file or package.module:factory; did you mean gpt2-small or gpt2-xl or gpt2-large?
    """

    keeps_lines = False
    """Whether the command line keeps the line breaks of the message: a sentence with supporting lines below it."""


class ConfigError(WseError):
    """A configuration file has an unknown key, a wrong unit or an impossible value.

    Example
    -------
    >>> import wse_sim
    >>> try:
    ...     wse_sim.load_wafer("wse9")
    ... except ConfigError as fault:
    ...     print(type(fault).__mro__[1].__name__)
    WseError
    """


class ModelError(WseError):
    """A model cannot be read or lowered.

    Example
    -------
    >>> import wse_sim
    >>> try:
    ...     wse_sim.run("fc-mnist", mode="sideways")
    ... except ModelError as fault:
    ...     print(str(fault).partition(";")[0])
    mode 'sideways' is unknown
    """


class UnsupportedOpError(ModelError):
    """An operator of the model has no kernel and no rule.

    Example
    -------
    >>> issubclass(UnsupportedOpError, ModelError)
    True
    """


class KernelError(WseError):
    """A kernel was requested a shape, tiling or precision that it does not have.

    Example
    -------
    >>> from wse_sim.kernels import family
    >>> try:
    ...     family("gemmm")
    ... except KernelError as fault:
    ...     print(fault.args[0].partition(";")[0])
    kernel family 'gemmm' is unknown
    """


class ProgramError(WseError):
    """A fabric program is malformed or undefined on the hardware.

    Example
    -------
    >>> issubclass(DeadlockError, ProgramError)
    True
    """


class DeadlockError(ProgramError):
    """A fabric program stopped with cores that wait for each other.

    Example
    -------
    >>> try:
    ...     raise DeadlockError("2 of 2 cores wait for each other")
    ... except ProgramError as fault:  # a deadlock is a fault of the program
    ...     print(fault)
    2 of 2 cores wait for each other
    """


class PlacementError(WseError):
    """A placement is illegal: overlap, out of the fabric, over memory.

    Example
    -------
    >>> issubclass(PlacementError, WseError)
    True
    """


class SerializationError(WseError):
    """A saved graph, plan or result cannot be read back.

    Example
    -------
    >>> import wse_sim
    >>> try:
    ...     wse_sim.load_result("no/such/folder")
    ... except SerializationError as fault:
    ...     print(str(fault).partition(" (")[0])
    the saved file no/such/folder/result.json cannot be read
    """
