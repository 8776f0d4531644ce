"""Random functions of the language that are defined for all arguments: no division by zero, loops with an end, indices in range."""

import random

INTS = ["i16", "u16", "i32", "u32", "i8", "u8", "i64", "i5", "u24"]
FLOATS = ["f32", "f16"]
BITS = {"i16": 16, "u16": 16, "i32": 32, "u32": 32, "i8": 8, "u8": 8, "i64": 64, "i5": 5, "u24": 24}


def limits(t: str) -> tuple[int, int]:
    bits = BITS[t]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if t[0] == "i" else (0, (1 << bits) - 1)


class Generator:
    """Text of functions; every name in `scope` is (name, type, may be assigned)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.functions: list[tuple[str, list[str], str]] = []
        self.count = 0

    def pick(self, items: list) -> object:
        return items[self.rng.randrange(len(items))]

    def fresh(self, lead: str) -> str:
        self.count += 1
        return f"{lead}{self.count}"

    def number(self, t: str) -> str:
        if t in FLOATS:
            return f"{self.rng.choice([0.0, 1.0, 0.5, 2.25, 3.0, 100.0, 0.1]):.4f}"
        low, high = limits(t)
        n = self.rng.choice([0, 1, 2, 3, 7, high, low, high // 3, self.rng.randint(low, high)])
        return f"@as({t}, {n})"

    def value(self, t: str, scope: list, depth: int) -> str:
        """An expression of type `t`."""
        names = [n for n, kind, _ in scope if kind == t]
        if depth <= 0 or self.rng.random() < 0.15:
            if names and self.rng.random() < 0.9:
                return str(self.pick(names))
            others = [n for n, kind, _ in scope if kind not in FLOATS]
            if others and self.rng.random() < 0.8:
                return f"@as({t}, {self.pick(others)})"
            return f"@as({t}, {self.number(t)})" if t in FLOATS else self.number(t)
        roll = self.rng.random()
        if roll < 0.12 and self.functions:
            same = [f for f in self.functions if f[2] == t]
            if same:
                name, params, _ = self.pick(same)
                return f"{name}({', '.join(self.value(p, scope, depth - 2) for p in params)})"
        if roll < 0.24:
            return self.cast(t, scope, depth)
        if roll < 0.34:
            return f"(if ({self.condition(scope, depth - 1)}) {self.value(t, scope, depth - 1)} else {self.value(t, scope, depth - 1)})"
        left, right = self.value(t, scope, depth - 1), self.value(t, scope, depth - 1)
        if t in FLOATS:
            return f"({left} {self.pick(['+', '-', '*'])} {right})"
        op = self.pick(["+", "-", "*", "&", "|", "^", "/", "%", "<<", ">>", "~", "-u"])
        if op in ("/", "%"):
            return f"({left} {op} ({right} | 1))"
        if op in ("<<", ">>"):
            return f"({left} {op} (@as(u16, {right}) & 15))"
        if op == "~":
            return f"(~{left})"
        return f"(-{left})" if op == "-u" else f"({left} {op} {right})"

    def cast(self, t: str, scope: list, depth: int) -> str:
        if t in FLOATS:
            return f"@as({t}, {self.value(str(self.pick(['i16', 'u8', 'i8'])), scope, depth - 1)})"
        if t in ("u32", "i32") and self.rng.random() < 0.2:
            return (
                f"@bitcast({t}, {self.value('f32', scope, depth - 1)})"
                if t == "u32"
                else f"@bitcast(i32, {self.value('u32', scope, depth - 1)})"
            )
        return f"@as({t}, {self.value(str(self.pick(INTS)), scope, depth - 1)})"

    def condition(self, scope: list, depth: int) -> str:
        roll = self.rng.random()
        if depth > 0 and roll < 0.25:
            return f"({self.condition(scope, depth - 1)} {self.pick(['and', 'or'])} {self.condition(scope, depth - 1)})"
        if roll < 0.32:
            return f"!({self.condition(scope, depth - 1)})"
        if roll < 0.36:
            return str(self.pick(["true", "false"]))
        t = str(self.pick(INTS + FLOATS))
        return f"{self.value(t, scope, depth - 1)} {self.pick(['==', '!=', '<', '<=', '>', '>='])} {self.value(t, scope, depth - 1)}"

    def statement(self, scope: list, depth: int, result: str, loops: int) -> list[str]:
        roll = self.rng.random()
        free = [(n, t) for n, t, m in scope if m]
        if roll < 0.25 or not free:
            t = str(self.pick(INTS + FLOATS))
            name = self.fresh("v")
            kind = self.pick(["var", "const"])
            text = f"{kind} {name}: {t} = {self.value(t, scope, 3)};"
            scope.append((name, t, kind == "var"))
            return [text]
        if roll < 0.5:
            name, t = self.pick(free)
            op = "=" if t in FLOATS and self.rng.random() < 0.5 else self.pick(["=", "+=", "-=", "*="])
            return [f"{name} {op} {self.value(t, scope, 3)};"]
        if depth <= 0:
            return []
        if roll < 0.62:
            lines = [f"if ({self.condition(scope, 2)}) {{", *self.block(scope, depth - 1, result, loops), "}"]
            if self.rng.random() < 0.5:
                lines[-1] += " else {"
                lines += [*self.block(scope, depth - 1, result, loops), "}"]
            return lines
        if roll < 0.74:
            return self.loop(scope, depth, result, loops)
        if roll < 0.82:
            return self.array(scope)
        if roll < 0.88:
            return self.structure(scope)
        if roll < 0.94:
            return self.switch(scope, depth, result, loops)
        if loops and roll < 0.97:
            return [f"if ({self.condition(scope, 1)}) {self.pick(['break', 'continue'])};"]
        return [f"if ({self.condition(scope, 1)}) {{ return {self.value(result, scope, 2)}; }}"]

    def loop(self, scope: list, depth: int, result: str, loops: int) -> list[str]:
        name = self.fresh("loop")
        inner = [*scope]
        t = str(self.pick(["i16", "u16", "i32"]))
        if self.rng.random() < 0.5:
            inner.append((name, t, False))
            bounds = self.pick(
                [
                    f"{self.rng.randint(0, 6)}",
                    f"0, {self.rng.randint(0, 9)}, 2",
                    "5, 0, -2" if t[0] == "i" else "1, 5, 1",
                ]
            )
            if self.rng.random() < 0.3 and "," not in str(bounds):
                bounds = f"{self.value(t, scope, 1)} & 7"
            unroll = "inline " if self.rng.random() < 0.15 and "&" not in str(bounds) else ""
            return [
                f"{unroll}for (@range({t}, {bounds})) |{name}| {{",
                *self.block(inner, depth - 1, result, 0 if unroll else loops + 1),
                "}",
            ]
        inner.append((name, t, False))
        n = self.rng.randint(0, 6)
        body = self.block(inner, depth - 1, result, loops + 1)
        return [f"{{ var {name}: {t} = 0;", f"while ({name} < {n}) : ({name} += 1) {{", *body, "} }"]

    def array(self, scope: list) -> list[str]:
        t, name = str(self.pick(["i16", "u32", "f32", "f16", "i64"])), self.fresh("a")
        n = self.rng.choice([1, 4, 8])
        target = self.fresh("v")
        scope.append((target, t, True))
        index = f"@as(u16, {self.value('u16', scope[:-1], 1)} & {n - 1})"
        items = ", ".join(self.value(t, scope[:-1], 1) for _ in range(n))
        return [
            f"var {name} = [{n}]{t}{{ {items} }};",
            f"{name}[{index}] {self.pick(['=', '+='])} {self.value(t, scope[:-1], 2)};",
            f"var {target}: {t} = {name}[{index}];",
            f"for ({name}) |x, k| {{ {target} += x; {name}[k] = {target}; }}",
            f"{{ const p: *{t} = &{name}[{n - 1}]; p.* = p.* + {target}; {target} = {name}[{index}]; }}",
        ]

    def structure(self, scope: list) -> list[str]:
        name, target = self.fresh("s"), self.fresh("v")
        a, b = self.value("i32", scope, 2), self.value("f32", scope, 2)
        scope.append((target, "i32", True))
        return [
            f"var {name} = Pair{{ .a = {a}, .b = {b}, .c = {self.value('u16', scope[:-1], 1)} }};",
            f"{name}.a += 3;",
            f"{name} = swap({name});",
            f"var {target}: i32 = {name}.a + @as(i32, {name}.c);",
        ]

    def switch(self, scope: list, depth: int, result: str, loops: int) -> list[str]:
        lines = [f"switch ({self.value('u16', scope, 1)} & 3) {{"]
        for key in ("0", "1, 2", "else"):
            lines += [f"{key} => {{", *self.block(scope, depth - 1, result, 0), "},"]
        return [*lines, "}"]

    def block(self, scope: list, depth: int, result: str, loops: int) -> list[str]:
        inner = [*scope]
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 3)):
            lines += self.statement(inner, depth, result, loops)
        return lines

    def function(self) -> tuple[str, str, list[str], str]:
        """Text, name, parameter types and result type of a new function."""
        params = [str(self.pick(INTS + FLOATS)) for _ in range(self.rng.randint(1, 4))]
        result = str(self.pick(INTS + FLOATS))
        name = self.fresh("fun")
        scope = [(f"p{k}", t, False) for k, t in enumerate(params)]
        body: list[str] = []
        for _ in range(self.rng.randint(2, 6)):
            body += self.statement(scope, 3, result, 0)
        head = ", ".join(f"p{k}: {t}" for k, t in enumerate(params))
        text = f"fn {name}({head}) {result} {{\n" + "\n".join("  " + line for line in body)
        text += f"\n  return {self.value(result, scope, 3)};\n}}\n"
        self.functions.append((name, params, result))
        return text, name, params, result


HEAD = """
const Pair = struct { a: i32, b: f32, c: u16 };
fn swap(x: Pair) Pair { return Pair{ .a = @as(i32, x.c), .b = -x.b, .c = @as(u16, x.a) }; }
"""


def program(seed: int, n: int) -> tuple[str, list[str]]:
    """A program whose `run` computes what its global initialisers have computed at compile time; names of (known, run) pairs by number."""
    g = Generator(seed)
    text, calls, exports = HEAD, "", ""
    kinds = []
    for k in range(n):
        body, name, params, result = g.function()
        text += body
        values = [g.number(p) for p in params]
        for i, (p, v) in enumerate(zip(params, values, strict=True)):
            text += f"var x{k}_{i}: {p} = {v};\n"
        text += f"var known{k}: {result} = {name}({', '.join(f'@as({p}, {v})' for p, v in zip(params, values, strict=True))});\n"
        text += f"var found{k}: {result} = 0;\n"
        calls += f"  found{k} = {name}({', '.join(f'x{k}_{i}' for i in range(len(params)))});\n"
        exports += f'  @export_symbol(known{k}, "known{k}");\n  @export_symbol(found{k}, "found{k}");\n'
        kinds.append(result)
    return text + f"fn run() void {{\n{calls}}}\ncomptime {{\n{exports}  @export_symbol(run);\n}}\n", kinds
