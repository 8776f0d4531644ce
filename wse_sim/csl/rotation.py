"""`@bind_rotating_tasks`: two tasks that share one id and take turns, as one task of ordinary statements.

How often is not public in detail; taken here: the main task runs for every word, and behind every `limit`-th run the other task runs
once.  If the other task takes an argument, it gets the word after these `limit` instead of the main task.
"""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl.values import Function, Global


def rotating_task(main: Function, other: Function, limit: int, start: int, serial: int) -> Function:
    """One task that counts its runs from `start` and calls the bodies of both; what it needs is added to the module of `main`."""
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
