"""Printer from a syntax tree to text: `parse(show_file(tree))` equals the tree. Messages print expressions
with it."""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl.parse import BINARY

ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", "\\": "\\\\"}
UNARY, POSTFIX = 10, 11
STEP = "    "


def quoted(text: str, quote: str) -> str:
    """Return a string or character literal with its quotes and escapes."""
    out = [ESCAPES.get(c, f"\\{c}" if c == quote else c) for c in text]
    return quote + "".join(out) + quote


def level(node: tree.Node) -> int:
    """Return the precedence of an expression; 0 if it needs parentheses inside another one."""
    if isinstance(node, tree.Binary):
        return BINARY[node.op]
    if isinstance(node, (tree.IfExpr, tree.Tensor, tree.ComptimeExpr)):
        return 0
    if isinstance(node, (tree.Unary, tree.PointerType, tree.ArrayType, tree.FnType)):
        return UNARY
    return POSTFIX


def inside(node: tree.Node, lowest: int) -> str:
    text = show(node)
    return text if level(node) >= lowest else f"({text})"


def listed(items: list[tree.Node]) -> str:
    return ", ".join(show(i) for i in items)


def show(node: tree.Node) -> str:
    """Return an expression, a type or a block as text."""
    match node:
        case tree.Name(_, name):
            return name
        case tree.Number(_, value):
            return repr(value)
        case tree.Bool(_, value):
            return "true" if value else "false"
        case tree.String(_, text):
            return quoted(text, '"')
        case tree.Char(_, text):
            return quoted(text, "'")
        case tree.Unary(_, op, operand):
            return op + inside(operand, UNARY)
        case tree.Binary(_, op, left, right):
            mine = BINARY[op]
            strict = mine + 1 if mine == BINARY["=="] else mine
            return f"{inside(left, strict)} {op} {inside(right, mine + 1)}"
        case tree.Call(_, callee, args):
            return f"{operand_of(callee)}({listed(args)})"
        case tree.Builtin(_, name, args):
            return f"{name}({listed(args)})"
        case tree.Member(_, base, name):
            return f"{operand_of(base)}.{name}"
        case tree.Index(_, base, indices):
            return f"{operand_of(base)}[{listed(indices)}]"
        case tree.Deref(_, base):
            return f"{operand_of(base)}.*"
        case tree.Literal():
            return show_literal(node)
        case tree.IfExpr(_, test, yes, no):
            end = "" if no is None else f" else {show(no)}"
            return f"if ({show(test)}) {inside(yes, 1) if no is not None else show(yes)}{end}"
        case tree.Tensor(_, names, extents, body):
            return f"|{', '.join(names)}|{{{listed(extents)}}} -> {show(body)}"
        case tree.ComptimeExpr(_, value):
            return f"comptime {show(value)}"
        case tree.Switch():
            return show_switch(node, "")
        case tree.Block():
            return show_block(node, "")
        case _:
            return show_type(node)


def operand_of(node: tree.Node) -> str:
    """Return the operand of a suffix as text, in parentheses if needed."""
    return inside(node, POSTFIX)


def show_literal(node: tree.Literal) -> str:
    lead = "." if node.type is None else inside(node.type, UNARY)
    fields = [show(v) if n is None else f".{n} = {show(v)}" for n, v in node.fields]
    return f"{lead}{{{', '.join(fields)}}}"


def show_type(node: tree.Node) -> str:
    match node:
        case tree.PointerType(_, const, many, target):
            return f"{'[*]' if many else '*'}{'const ' if const else ''}{inside(target, UNARY)}"
        case tree.ArrayType(_, sizes, const, element):
            return f"[{listed(sizes)}]{'const ' if const else ''}{inside(element, UNARY)}"
        case tree.FnType(_, kind, params, result):
            return f"{kind}({', '.join(map(show_parameter, params))}) {inside(result, UNARY)}"
        case tree.StructType(_, kind, layout, fields):
            lead = f"{layout} " if layout else ""
            return f"{lead}{kind} {{ {', '.join(map(show_parameter, fields))} }}"
        case tree.EnumType(_, base, names):
            inner = [n if v is None else f"{n} = {show(v)}" for n, v in names]
            return f"enum({show(base)}) {{ {', '.join(inner)} }}"
    raise TypeError(f"{type(node).__name__} is not an expression")


def show_parameter(p: tree.Parameter) -> str:
    lead = "comptime " if p.comptime else ""
    name = "" if p.name is None else f"{p.name}: "
    return f"{lead}{name}{'anytype' if p.type is None else inside(p.type, UNARY)}"


def show_block(node: tree.Block, indent: str) -> str:
    label = "" if node.label is None else f"{node.label}: "
    if not node.statements:
        return label + "{}"
    inner = indent + STEP
    return (
        f"{label}{{\n"
        + "".join(f"{inner}{show_statement(s, inner)}\n" for s in node.statements)
        + indent
        + "}"
    )


def show_switch(node: tree.Switch, indent: str) -> str:
    arms = []
    for keys, body in node.arms:
        value = show_block(body, indent + STEP) if isinstance(body, tree.Block) else show(body)
        arms.append(f"{indent}{STEP}{'else' if keys is None else listed(keys)} => {value},\n")
    return f"switch ({show(node.subject)}) {{\n{''.join(arms)}{indent}}}"


def show_attributes(attributes: list[tuple[str, tree.Node]]) -> str:
    return "".join(f" {word}({show(value)})" for word, value in attributes)


def show_simple(node: tree.Node) -> str:
    """Return an assignment or an expression statement without its semicolon."""
    if isinstance(node, tree.Assign):
        return f"{operand_of(node.target)} {node.op} {show(node.value)}"
    assert isinstance(node, tree.ExprStatement)
    return show(node.value)


def show_statement(node: tree.Node, indent: str) -> str:
    match node:
        case tree.Declaration():
            return show_declaration(node)
        case tree.Assign() | tree.ExprStatement():
            return show_simple(node) + ";"
        case tree.If(_, test, yes, no):
            end = "" if no is None else f" else {show_statement(no, indent)}"
            return f"if ({show(test)}) {show_statement(yes, indent)}{end}"
        case tree.While(_, test, step, body, unroll, label):
            step_text = "" if step is None else f" : ({show_simple(step)})"
            return f"{loop_lead(label, unroll)}while ({show(test)}){step_text} {show_block(body, indent)}"
        case tree.For(_, over, names, body, unroll, label):
            return f"{loop_lead(label, unroll)}for ({show(over)}) |{', '.join(names)}| {show_block(body, indent)}"
        case tree.Return(_, value):
            return "return;" if value is None else f"return {show(value)};"
        case tree.Break(_, label, value):
            return (
                f"break{'' if label is None else f' :{label}'}{'' if value is None else f' {show(value)}'};"
            )
        case tree.Continue(_, label):
            return f"continue{'' if label is None else f' :{label}'};"
        case tree.Comptime(_, body):
            return f"comptime {show_statement(body, indent)}"
        case tree.Switch():
            return show_switch(node, indent)
        case tree.Block():
            return show_block(node, indent)
    raise TypeError(f"{type(node).__name__} is not a statement")


def loop_lead(label: str | None, unroll: bool) -> str:
    return ("" if label is None else f"{label}: ") + ("inline " if unroll else "")


def show_declaration(node: tree.Declaration) -> str:
    lead = "".join(f"{m} " for m in node.modifiers) + ("comptime " if node.comptime else "")
    kind = "" if node.type is None else f": {show(node.type)}"
    value = "" if node.value is None else f" = {show(node.value)}"
    return f"{lead}{node.kind} {node.name}{kind}{show_attributes(node.attributes)}{value};"


def show_top(node: tree.Node) -> str:
    match node:
        case tree.Declaration():
            return show_declaration(node)
        case tree.Layout(_, body):
            return f"layout {show_block(body, '')}"
        case tree.Function(_, kind, name, params, result, modifiers, attributes, body):
            head = (
                "".join(f"{m} " for m in modifiers)
                + f"{kind} {name}({', '.join(map(show_parameter, params))})"
            )
            end = ";" if body is None else f" {show_block(body, '')}"
            return f"{head} {inside(result, UNARY)}{show_attributes(attributes)}{end}"
        case _:
            return show_statement(node, "")


def show_file(node: tree.File) -> str:
    """Return a whole file as text."""
    return "".join(show_top(item) + "\n" for item in node.items)
