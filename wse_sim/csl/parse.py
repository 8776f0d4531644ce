"""Parser from source text to a syntax tree: a regular expression for tokens, recursive descent, precedence
climbing.

The grammar needs no backtracking: a brace after a *type* never opens a literal, and a brace after an
expression does. Keywords are reserved except after a dot.

One file, because a recursive-descent parser is one class: every rule calls the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from wse_sim.csl import tree
from wse_sim.csl.diagnostics import SOURCES, CslError, Source
from wse_sim.csl.hints import hint

T = TypeVar("T")
MOST_DIGITS = 400  # the largest float has 309 before its point

TOKEN = re.compile(
    r"""[ \t\r\n]+|//[^\n]*
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>0x[0-9a-fA-F_]+|0b[01_]+|0o[0-7_]+|[0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][-+]?[0-9]+)?)
    |(?P<builtin>@[A-Za-z_][A-Za-z0-9_]*)
    |(?P<op>\.\{|\.\*|->|=>|<<=|>>=|<<|>>|[-+*/%&|^=!<>]=|[-+*/%&|^=!<>~(){}\[\],;:.])
    |(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>'(?:\\x[0-9a-fA-F]{2}|\\.|[^'\\\n])')|(?P<bad>.)""",
    re.VERBOSE,
)
KEYWORDS = frozenset(
    [
        "const",
        "var",
        "param",
        "fn",
        "task",
        "comptime",
        "layout",
        "export",
        "extern",
        "inline",
        "noinline",
        "packed",
        "struct",
        "union",
        "enum",
        "anytype",
        "if",
        "else",
        "while",
        "for",
        "switch",
        "return",
        "break",
        "continue",
        "true",
        "false",
        "and",
        "or",
        "align",
        "linksection",
        "linkname",
    ]
)
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
# fmt: off
BINARY = {
    "or": 1, "and": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3,
    "|": 4, "^": 5, "&": 6, "<<": 7, ">>": 7, "+": 8, "-": 8, "*": 9, "/": 9, "%": 9,
}
# fmt: on
COMPARE = 3
ASSIGN = frozenset(["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="])
MODIFIERS = frozenset(["export", "extern", "inline", "noinline"])
ATTRIBUTES = frozenset(["align", "linksection", "linkname"])
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


def unescape(text: str) -> str:
    """Return the characters of a quoted literal, without its quotes and with escapes replaced."""
    return re.sub(
        r"\\(x[0-9a-fA-F]{2}|.)",
        lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 3 else ESCAPES.get(m[1], m[1]),
        text[1:-1],
    )


class Parser:
    """Parser of one source in one pass; rule methods return nodes of :mod:`wse_sim.csl.tree`."""

    def __init__(self, source: Source) -> None:
        self.i = 0
        self.kinds: list[str] = []
        self.values: list[str] = []
        self.places: list[int] = []
        base = source.base
        for m in TOKEN.finditer(source.text):
            group = m.lastgroup
            if group is None:
                continue
            word = m.group()
            if group == "op" or (group == "name" and word in KEYWORDS):
                group = word
            self.kinds.append(group)
            self.values.append(word)
            self.places.append(m.start() + base)
        self.kinds.append("end")
        self.values.append("")
        self.places.append(len(source.text) + base)

    def fail(self, wanted: str) -> NoReturn:
        kind = self.kinds[self.i]
        found = repr(self.values[self.i])
        if kind == "end":
            found = "the end of the file"
        elif kind in KEYWORDS:
            found = f"the keyword {found}"
        elif kind == "bad" and self.values[self.i] in "\"'":
            found = f"a {self.values[self.i]} that is not closed on its line"
        said = f"expected {wanted}, found {found}{hint(self.kinds, self.values, self.i, wanted)}"
        raise CslError(self.places[self.i], said)

    def need(self, kind: str) -> str:
        i = self.i
        if self.kinds[i] != kind:
            self.fail("a name" if kind == "name" else repr(kind))
        self.i = i + 1
        return self.values[i]

    def take(self, kind: str) -> bool:
        if self.kinds[self.i] == kind:
            self.i += 1
            return True
        return False

    def field_name(self) -> str:
        """Parse the name after a dot, which may be a keyword."""
        if self.kinds[self.i] != "name" and self.kinds[self.i] not in KEYWORDS:
            self.fail("a name")
        self.i += 1
        return self.values[self.i - 1]

    def some(self, item: Callable[[], T], close: str) -> list[T]:
        """Parse like `many`, but require at least one item."""
        if self.kinds[self.i] == close:
            self.fail("at least one item")
        return self.many(item, close)

    def many(self, item: Callable[[], T], close: str) -> list[T]:
        """Parse items separated by commas (a trailing comma is allowed) up to and including `close`."""
        found = []
        while self.kinds[self.i] != close:
            found.append(item())
            if not self.take(","):
                break
        if self.kinds[self.i] != close:
            self.fail(f"',' or {close!r}")
        self.i += 1
        return found

    # ---- top level
    def file(self) -> tree.File:
        found = []
        while self.kinds[self.i] != "end":
            found.append(self.top())
        return tree.File(self.places[0], found)

    def top(self) -> tree.Node:
        at, kind = self.places[self.i], self.kinds[self.i]
        if kind == "layout":
            self.i += 1
            return tree.Layout(at, self.block())
        if kind == "comptime":
            self.i += 1
            if self.kinds[self.i] == "{":
                return tree.Comptime(at, self.block())
            node = self.postfix(self.primary_name(), False)
            self.need(";")
            return tree.Comptime(at, tree.ExprStatement(at, node))
        modifiers = []
        while self.kinds[self.i] in MODIFIERS:
            modifiers.append(self.values[self.i])
            self.i += 1
        kind = self.kinds[self.i]
        if kind in ("const", "var", "param"):
            return self.declaration(self.places[self.i], modifiers)
        if kind in ("fn", "task"):
            self.i += 1
            at = self.places[self.i]
            name = self.need("name")
            self.need("(")
            params = self.many(self.parameter, ")")
            result = self.type()
            attributes = self.attributes()
            body = None if self.take(";") else self.block()
            return tree.Function(at, kind, name, params, result, modifiers, attributes, body)
        return self.fail("a declaration (const, var, param, fn, task, comptime or layout)")

    def attributes(self) -> list[tuple[str, tree.Node]]:
        found = []
        while self.kinds[self.i] in ATTRIBUTES:
            word = self.values[self.i]
            self.i += 1
            self.need("(")
            found.append((word, self.expr()))
            self.need(")")
        return found

    def declaration(self, at: int, modifiers: list[str], comptime: bool = False) -> tree.Declaration:
        kind = self.values[self.i]
        self.i += 1
        at = self.places[self.i]
        name = self.need("name")
        kindof = self.type() if self.take(":") else None
        attributes = self.attributes()
        value = self.expr() if self.take("=") else None
        self.need(";")
        return tree.Declaration(at, kind, name, kindof, attributes, value, modifiers, comptime)

    def parameter(self) -> tree.Parameter:
        known = self.take("comptime")
        at = self.places[self.i]
        name = self.need("name")
        self.need(":")
        return tree.Parameter(at, name, None if self.take("anytype") else self.type(), known)

    # ---- types
    def type(self) -> tree.Node:
        node = self.prefix_type()
        return self.postfix(self.primary_name(), False) if node is None else node

    def prefix_type(self) -> tree.Node | None:
        """Parse a type that begins with a sign or keyword; return None for anything else."""
        kind, at = self.kinds[self.i], self.places[self.i]
        if kind == "*":
            self.i += 1
            const = self.take("const")
            return tree.PointerType(at, const, False, self.type())
        if kind == "[":
            self.i += 1
            if self.kinds[self.i] == "*" and self.kinds[self.i + 1] == "]":
                self.i += 2
                const = self.take("const")
                return tree.PointerType(at, const, True, self.type())
            sizes = self.some(self.expr, "]")
            const = self.take("const")
            return tree.ArrayType(at, sizes, const, self.type())
        if kind in ("fn", "task"):
            self.i += 1
            self.need("(")
            params = self.many(self.fn_type_parameter, ")")
            return tree.FnType(at, kind, params, self.type())
        if kind in ("struct", "union", "enum", "packed", "extern"):
            return self.compound_type(kind, at)
        return None

    def compound_type(self, kind: str, at: int) -> tree.Node:
        layout = ""
        if kind in ("packed", "extern"):
            layout = kind
            self.i += 1
            kind = self.kinds[self.i]
            if kind not in ("struct", "union"):
                self.fail("'struct' or 'union'")
        self.i += 1
        if kind == "enum":
            self.need("(")
            base = self.type()
            self.need(")")
            self.need("{")
            return tree.EnumType(at, base, self.many(self.enumerator, "}"))
        self.need("{")
        return tree.StructType(at, kind, layout, self.many(self.struct_field, "}"))

    def struct_field(self) -> tree.Parameter:
        at = self.places[self.i]
        name = self.need("name")
        self.need(":")
        return tree.Parameter(at, name, self.type())

    def fn_type_parameter(self) -> tree.Parameter:
        known = self.take("comptime")
        at = self.places[self.i]
        name = None
        if self.kinds[self.i] == "name" and self.kinds[self.i + 1] == ":":
            name = self.values[self.i]
            self.i += 2
        return tree.Parameter(at, name, None if self.take("anytype") else self.type(), known)

    def enumerator(self) -> tuple[str, tree.Node | None]:
        return (self.need("name"), self.expr() if self.take("=") else None)

    # ---- statements
    def block(self, label: str | None = None) -> tree.Block:
        at = self.places[self.i]
        self.need("{")
        found = []
        kinds = self.kinds
        while kinds[self.i] != "}":
            found.append(self.statement())
        self.i += 1
        return tree.Block(at, found, label)

    def statement(self) -> tree.Node:
        i = self.i
        kind, at = self.kinds[i], self.places[i]
        if kind == "name" and self.kinds[i + 1] == ":":
            label = self.values[i]
            self.i += 2
            if self.kinds[self.i] == "{":
                return self.block(label)
            if self.kinds[self.i] in ("while", "for", "inline"):
                return self.loop(self.places[self.i], label)
            self.fail("a loop or a block after the label")
        if kind in ("name", "builtin", "("):
            node = self.simple()
            self.need(";")
            return node
        if kind in {"const", "var"}:
            return self.declaration(at, [])
        if kind == "if":
            return self.if_statement(at)
        if kind in ("while", "for", "inline"):
            return self.loop(at, None)
        if kind == "{":
            return self.block()
        if kind == "switch":
            return self.switch(at)
        if kind == "comptime":
            self.i += 1
            kind = self.kinds[self.i]
            if kind == "{":
                return tree.Comptime(at, self.block())
            if kind in ("const", "var"):
                return self.declaration(at, [], True)
            node = tree.ExprStatement(at, self.postfix(self.primary_name(), False))
            self.need(";")
            return tree.Comptime(at, node)
        return self.jump(kind, at)

    def jump(self, kind: str, at: int) -> tree.Node:
        if kind not in ("return", "break", "continue"):
            self.fail("a statement")
        self.i += 1
        label = self.need("name") if kind != "return" and self.take(":") else None
        node = None
        if kind != "continue" and self.kinds[self.i] != ";":
            node = self.expr()
        self.need(";")
        if kind == "return":
            return tree.Return(at, node)
        return tree.Break(at, label, node) if kind == "break" else tree.Continue(at, label)

    def simple(self) -> tree.Node:
        """Parse an assignment or an expression (a call, or a comparison without effect), without its
        semicolon."""
        at = self.places[self.i]
        node = self.postfix(self.primary_name(), False)
        op = self.kinds[self.i]
        if op in ASSIGN:
            at = self.places[self.i]
            self.i += 1
            return tree.Assign(at, op, node, self.expr())
        if op in COMPARISONS:
            at = self.places[self.i]
            self.i += 1
            node = tree.Binary(at, op, node, self.binary(COMPARE + 1))
        return tree.ExprStatement(at, node)

    def if_statement(self, at: int) -> tree.If:
        self.i += 1
        self.need("(")
        test = self.expr()
        self.need(")")
        yes: tree.Node
        if self.kinds[self.i] in ("name", "builtin", "(") and self.kinds[self.i + 1] != ":":
            yes = self.simple()
            if self.kinds[self.i] != "else":  # `if (c) f() else g();`
                self.need(";")
        else:
            yes = self.statement()
        no = self.statement() if self.take("else") else None
        return tree.If(at, test, yes, no)

    def loop(self, at: int, label: str | None) -> tree.Node:
        unroll = self.take("inline")
        kind = self.kinds[self.i]
        if kind not in ("for", "while"):
            self.fail("'for' or 'while'")
        self.i += 1
        self.need("(")
        over = self.expr()
        self.need(")")
        if kind == "for":
            self.need("|")
            names = [self.need("name")]
            if self.take(","):
                names.append(self.need("name"))
            self.need("|")
            return tree.For(at, over, names, self.block(), unroll, label)
        step = None
        if self.take(":"):
            self.need("(")
            step = self.simple()
            self.need(")")
        return tree.While(at, over, step, self.block(), unroll, label)

    def switch(self, at: int) -> tree.Switch:
        self.i += 1
        self.need("(")
        subject = self.expr()
        self.need(")")
        self.need("{")
        return tree.Switch(at, subject, self.many(self.arm, "}"))

    def arm(self) -> tuple[list[tree.Node] | None, tree.Node]:
        keys = None if self.take("else") else self.some(self.expr, "=>")
        if keys is None:
            self.need("=>")
        return (keys, self.expr())

    # ---- expressions
    def expr(self) -> tree.Node:
        kind, at = self.kinds[self.i], self.places[self.i]
        if kind == "if":
            self.i += 1
            self.need("(")
            test = self.expr()
            self.need(")")
            yes = self.expr()
            return tree.IfExpr(at, test, yes, self.expr() if self.take("else") else None)
        if kind == "|":
            self.i += 1
            names = self.some(lambda: self.need("name"), "|")
            self.need("{")
            extents = self.some(self.expr, "}")
            self.need("->")
            body = self.postfix(self.primary_name(), False)
            if not isinstance(body, tree.Index):
                raise CslError(
                    body.at, "the access of a tensor_access must end in an index, as in '|i|{n} -> a[i]'"
                )
            return tree.Tensor(at, names, extents, body)
        return self.binary(1)

    def binary(self, lowest: int) -> tree.Node:
        left = self.unary()
        kinds = self.kinds
        while True:
            op = kinds[self.i]
            level = BINARY.get(op, 0)
            if level < lowest:
                return left
            at = self.places[self.i]
            self.i += 1
            left = tree.Binary(at, op, left, self.binary(level + 1))
            if level == COMPARE and BINARY.get(kinds[self.i]) == COMPARE:
                self.fail("no second comparison (write parentheses)")

    def unary(self) -> tree.Node:
        i = self.i
        kind = self.kinds[i]
        if kind in ("-", "!", "~", "&"):
            self.i = i + 1
            return tree.Unary(self.places[i], kind, self.unary())
        if kind == "comptime":
            self.i = i + 1
            return tree.ComptimeExpr(self.places[i], self.expr())
        return self.postfix(self.primary(), True)

    def primary_name(self) -> tree.Node:
        i = self.i
        kind, at = self.kinds[i], self.places[i]
        self.i = i + 1
        if kind == "name":
            return tree.Name(at, self.values[i])
        if kind == "builtin":
            self.need("(")
            return tree.Builtin(at, self.values[i], self.many(self.expr, ")"))
        if kind == "(":
            node = self.expr()
            self.need(")")
            return node
        self.i = i
        return self.fail("an expression or a type")

    def primary(self) -> tree.Node:
        i = self.i
        kind, at, value = self.kinds[i], self.places[i], self.values[i]
        if kind == "name":
            self.i = i + 1
            if self.kinds[i + 1] == ":" and self.kinds[i + 2] == "{":
                self.i = i + 2
                return self.block(value)
            return tree.Name(at, value)
        if kind == "number":
            self.i = i + 1
            return tree.Number(at, self.number(value))
        if kind == "string":
            self.i = i + 1
            return tree.String(at, unescape(value))
        if kind == "char":
            self.i = i + 1
            return tree.Char(at, unescape(value))
        if kind in ("true", "false"):
            self.i = i + 1
            return tree.Bool(at, kind == "true")
        if kind == ".{":
            self.i = i + 1
            return tree.Literal(at, None, self.many(self.field, "}"))
        if kind == "switch":
            return self.switch(at)
        if kind == "{":
            return self.block()
        node = self.prefix_type()
        return self.primary_name() if node is None else node

    def number(self, text: str) -> int | float:
        digits = text.replace("_", "")
        if len(digits) > MOST_DIGITS:
            raise CslError(
                self.places[self.i - 1], f"a number of {len(digits):,} digits fits no type; write it shorter"
            )
        if digits[1:2] in ("x", "b", "o"):
            if len(digits) == 2:
                raise CslError(self.places[self.i - 1], f"expected digits after {digits!r}")
            return int(digits, 0)
        return float(digits) if set(digits) & set(".eE") else int(digits)

    def field(self) -> tuple[str | None, tree.Node]:
        if self.kinds[self.i] == "." and self.kinds[self.i + 2] == "=":
            self.i += 1
            name = self.field_name()
            self.i += 1
            return (name, self.expr())
        return (None, self.expr())

    def postfix(self, node: tree.Node, literal: bool) -> tree.Node:
        """Parse calls, members and indices after `node`; if `literal`, a brace opens a typed literal."""
        kinds = self.kinds
        while True:
            i = self.i
            kind, at = kinds[i], self.places[i]
            if kind == "(":
                self.i = i + 1
                node = tree.Call(at, node, self.many(self.expr, ")"))
            elif kind == ".":
                self.i = i + 1
                node = tree.Member(self.places[i + 1], node, self.field_name())
            elif kind == "[":
                self.i = i + 1
                node = tree.Index(at, node, self.some(self.expr, "]"))
            elif kind == ".*":
                self.i = i + 1
                node = tree.Deref(at, node)
            elif kind == "{" and literal:
                self.i = i + 1
                node = tree.Literal(at, node, self.many(self.field, "}"))
            else:
                return node


def parse(text: str, name: str = "<text>") -> tree.File:
    """Parse the text of one file; `name` is the file's name in messages.

    Raises
    ------
    CslError
        At the first token that does not fit the grammar.
    """
    parser = Parser(SOURCES.add(name, text))
    try:
        return parser.file()
    except RecursionError:
        at = parser.places[min(parser.i, len(parser.places) - 1)]
        raise CslError(at, "expressions or blocks are nested too deeply; split them") from None


def parse_type(text: str) -> tree.Node:
    """Parse a type in its own text, such as `[8]i16`.

    Raises
    ------
    CslError
        If the text is not a type.
    """
    parser = Parser(SOURCES.add("<type>", text))
    node = parser.type()
    if parser.kinds[parser.i] != "end":
        parser.fail("the end of the type")
    return node
