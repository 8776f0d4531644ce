"""Image of a program: every class compiled and linked, with the routes of the layout and of the programs."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np

from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.layout import read_params, run_program
from wse_sim.csl.link import ClassLinker, Linker
from wse_sim.csl.modules import ProgramState
from wse_sim.csl.strict import check_inputs, check_queues, check_tasks
from wse_sim.csl.tiles import CodeClass, code_classes
from wse_sim.csl.unit import Compiler
from wse_sim.csl.unreached import Unreached
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import CoreClass, Image

CLASSES_PER_COLLECTION = 500  # a class leaves about 0.3 MB in reference cycles


def build_image(compiler: Compiler) -> Image:
    """Compile and link every class, and merge the routes of the layout and of the programs.

    Raises
    ------
    CslError
        If a color of a core is configured twice, or code and data exceed the memory of a core.
    """
    layout = compiler.layout
    assert layout is not None
    linker = Linker(compiler)
    cores = layout.width * layout.height
    core_class = np.full(cores, -1, np.int32)
    config = np.zeros((24, cores), np.uint16)
    numbers = np.array([0, *(1 + linker.config(route) for route in layout.routes)], np.uint16)
    for color, routes in layout.colors.items():
        config[color] = numbers[routes]
    classes: list[CoreClass] = []
    programs: list[ProgramState] = []
    unreached = Unreached()

    def build(code: CodeClass) -> frozenset[str]:
        unit = run_program(compiler, code)
        of_class = ClassLinker(linker, unit, f"{len(classes)}:{code.path.rsplit('/', 1)[-1]}")
        linked = of_class.link()
        check_memory(linked, code)
        classes.append(linked)
        assert unit.program is not None
        programs.append(unit.program)
        if len(programs) % CLASSES_PER_COLLECTION == 0:
            gc.collect()
        read = read_params(unit)
        if compiler.options.strict:
            unreached.note(unit, of_class.program)
        return read

    for k, code in enumerate(code_classes(layout.tiles, build)):
        where = np.concatenate(code.places)
        core_class[where] = k
        for color, (route, at) in programs[k].colors.items():
            if config[color, where].any():
                x, y = layout.place(int(where[np.flatnonzero(config[color, where])].min()))
                raise CslError(
                    at,
                    f"color {color} of PE ({x}, {y}) is configured here and in the layout; remove one of the two",
                )
            config[color, where] = 1 + linker.config(route)
    check_queues(compiler.queues)
    check_inputs(compiler.colorless)
    check_tasks(compiler.tasks)
    unreached.check(compiler.reached)
    pool = tuple(linker.constants.rows)
    return Image(
        arch=compiler.options.arch,
        rows=layout.height,
        cols=layout.width,
        core_class=core_class,
        classes=tuple(dataclasses.replace(c, constants=pool) for c in classes),
        code=np.concatenate(linker.code) if linker.code else np.zeros((0, 4), np.int32),
        cost_class=np.concatenate(linker.costs) if linker.costs else np.zeros(0, np.uint8),
        source=np.concatenate(linker.sources) if linker.sources else np.zeros(0, np.int32),
        positions=tuple(linker.positions.rows),
        vector_issues=linker.vectors.table(O.VECTOR_FIELDS),
        dsr_loads=linker.dsr_loads.table(O.LOAD_FIELDS),
        shapes=linker.shapes.table(O.SHAPE_FIELDS),
        rings=linker.rings.table(O.RING_FIELDS),
        filters=linker.filters.table(O.FILTER_FIELDS, np.int64),
        configs=tuple(linker.configs.rows),
        config=config,
        host_colors=tuple(sorted(compiler.host_colors)),
        prints=tuple(linker.prints.rows),
        asserts=tuple(linker.asserts.rows),
        offset=compiler.options.offsets,
        fabric=compiler.options.fabric,
        half=compiler.options.fp16,
        local_names=tuple(linker.local_names),
        structures=tuple(linker.structures.values()),
    )


def check_memory(cls: CoreClass, tiles: CodeClass) -> None:
    """Check that code and data of a class fit into the memory of a core.

    Raises
    ------
    CslError
        If they do not.
    """
    if cls.code_words + cls.data_words > O.WORDS:
        raise CslError(
            tiles.at,
            f"'{tiles.path.rsplit('/', 1)[-1]}' needs {2 * cls.code_words} bytes of code and {2 * cls.data_words} bytes of data, "
            f"{2 * (cls.code_words + cls.data_words)} together, and a PE has {2 * O.WORDS}; use smaller arrays or fewer functions",
        )
