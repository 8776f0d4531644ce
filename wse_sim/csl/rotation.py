"""Translation of `@bind_rotating_tasks`, two tasks that share one id alternately, to one task of ordinary
statements.

The exact rule is not public. The assumption here: the main task runs for every word, and after every `limit`
runs of it the other task runs once. If the other task takes an argument, it receives the word after these
`limit` words instead of the main task.
"""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl.values import Function, Global


def rotating_task(main: Function, other: Function, limit: int, start: int, serial: int) -> Function:
    """Return one task that counts its runs from `start` and calls the bodies of both; its counter and
    functions are added to the module of `main`."""
    at, home = main.node.at, main.instance
    count, first, second = (f"#{what}{serial}" for what in ("count", "main", "other"))
    declared = tree.Declaration(at, "var", count, tree.Name(at, "u16"), [], tree.Number(at, start), [])
    home.members[count] = Global(declared, home, (home.serial, len(home.file.items) + serial))
    for name, fn in ((first, main), (second, other)):
        n = fn.node
        body = tree.Function(n.at, "fn", n.name, n.params, n.result, [], [], n.body)
        home.members[name] = Function(body, fn.instance)
    word: list[tree.Node] = [tree.Name(at, str(p.name)) for p in main.node.params]

    def call(name: str, args: list[tree.Node]) -> tree.Node:
        return tree.ExprStatement(at, tree.Call(at, tree.Name(at, name), args))

    def set_count(op: str, n: int) -> tree.Node:
        return tree.Assign(at, op, tree.Name(at, count), tree.Number(at, n))

    is_full = tree.Binary(at, "==", tree.Name(at, count), tree.Number(at, limit))
    statements: list[tree.Node]
    if other.node.params:
        turn = tree.Block(at, [set_count("=", 0), call(second, word)])
        statements = [tree.If(at, is_full, turn, tree.Block(at, [set_count("+=", 1), call(first, word)]))]
    else:
        turn = tree.Block(at, [set_count("=", 0), call(second, [])])
        statements = [call(first, word), set_count("+=", 1), tree.If(at, is_full, turn, None)]
    node = main.node
    return Function(
        tree.Function(at, "task", node.name, node.params, node.result, [], [], tree.Block(at, statements)),
        home,
    )
