"""Hints for syntax errors: habits from C and Zig, and missing parts."""

from __future__ import annotations

import re
from collections.abc import Sequence

TYPE_NAME = re.compile(r"[iuf]\d+|bool|color|int|float|double|char")

ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")


def in_arm(kinds: Sequence[str], i: int) -> bool:
    """Return whether token `i` follows the `=>` of a switch in the same arm."""
    for kind in reversed(kinds[:i]):
        if kind in ("=>", "{", "}", ";", ","):
            return kind == "=>"
    return False


def hint(kinds: Sequence[str], values: Sequence[str], i: int, wanted: str) -> str:
    """Return the end of the message about token `i`, with what to write instead; empty if there is no hint.

    >>> kinds = ["name", "name", "=", "number", ";", "end"]
    >>> hint(kinds, ["u16", "x", "=", "1", ";", ""], 1, "';'")
    '; a variable is declared as var x: u16 = VALUE'
    """
    here, before = kinds[i], kinds[i - 1] if i else ""
    after = kinds[i + 1] if i + 1 < len(kinds) else ""
    if here == "{" and before == ")" and wanted.startswith("an expression or a type"):
        return "; a function or task states its result before its body: void if it has none"
    if here == "{" and wanted == "'|'":
        return "; a loop names its element: for (...) |i| { ... }"
    if here == "." and before == "{":
        return "; a structure is written .{ .name = value }"
    if here == before == "+" or (here == "+" and after == "+"):
        return "; CSL has no ++: write x += 1"
    if here in ASSIGNMENTS and wanted == "',' or '}'" and in_arm(kinds, i):
        return "; an arm of a switch is an expression: write => { ... } around statements"
    if here == "/" and after == "*":
        return "; a comment begins with // and ends with its line"
    if here == "var" and before == "(":
        return "; a loop over numbers is for (@range(i16, n)) |i| { ... }"
    if wanted == "';'" and here == "name" and before == "name" and TYPE_NAME.fullmatch(values[i - 1]):
        return f"; a variable is declared as var {values[i]}: {values[i - 1]} = VALUE"
    if wanted == "';'" and here == "==":
        return "; a value is given with ="
    if wanted == "'('" and before in ("if", "while", "for", "switch"):
        return f"; what follows '{before}' is in parentheses"
    if here == "param" and wanted == "a statement":
        return "; parameters of a file are declared outside functions"
    return ""
