"""Front end for editors: answers requests of the Debug Adapter Protocol inside the debugged program.

Messages are those of the protocol without sequence numbers and framing, which the adapter of the command line
adds. A thread is a core. In a program with more than :data:`MOST_THREADS` cores a thread is a class of cores,
represented by one of its cores.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.csl.debug.console import Commands
from wse_sim.csl.debug.debugger import INTO, OUT, OVER, BreakPoint, Debugger, NamedWatch
from wse_sim.csl.debug.lines import DebugError
from wse_sim.csl.debug.values import Datum, shown
from wse_sim.csl.debug.wire import EditorWire, Message
from wse_sim.errors import WseError
from wse_sim.fabric.vm.replay import StopEvent

MOST_THREADS = 64
FRAMES = 1000
"""Range of frame numbers per core: the frames of a core are numbered from FRAMES times the core."""
CAPABILITIES = {
    "supportsConfigurationDoneRequest": True, "supportsFunctionBreakpoints": True, "supportsConditionalBreakpoints": True,
    "supportsStepBack": True, "supportsDataBreakpoints": True, "supportsEvaluateForHovers": True, "supportTerminateDebuggee": True,
    "supportsTerminateRequest": True,
}  # fmt: skip
_REASONS = {
    "watch": "data breakpoint", "cycle": "step", "pause": "pause", "fault": "exception", "loaded": "entry", "ended": "pause",
    "begin": "step", "present": "step",
}  # fmt: skip
_CORES = re.compile(r"\s*cores\s+([\d:,+ ]+?)\s*(?:\bif\b(.*))?$")
Answer = dict[str, Any]
Children = Callable[[], list[tuple[str, Datum, str]]]


class DapFront:
    """Front end that receives requests over a wire as ``{"dap": request}``, and sends responses and events in
    the same form."""

    def __init__(self, wire: EditorWire) -> None:
        self.wire = wire
        self._is_configured = False
        self._stops_first = False
        self._by_file: dict[str, list[int]] = {}
        self._functions: list[int] = []
        self._data: list[int] = []
        self._children: list[Children] = []
        self._ends = False
        self._debugger: Debugger | None = None
        self._event = StopEvent("loaded", 0)

    @property
    def debugger(self) -> Debugger:
        """Debugger that called this front end."""
        assert self._debugger is not None
        return self._debugger

    def __call__(self, debugger: Debugger, event: StopEvent) -> None:
        """Send an event to the editor and answer its requests until it resumes the program."""
        self._debugger, self._children, self._event = debugger, [], event
        debugger.asks_pause = self.asks_pause
        if event.kind == "loaded":
            self._send({"type": "event", "event": "initialized"})
            while not self._is_configured and not debugger.is_detached:
                self._take(self.wire.receive())
            if not self._stops_first and not self._ends:
                debugger.resume()
                return
        self._stopped(event)
        while not debugger.is_released:
            self._take(self.wire.receive())
        if self._ends:
            raise SystemExit(0)

    def asks_pause(self) -> bool:
        """Answer requests while the program runs; return whether it should stop."""
        wanted = False
        while (message := self.wire.receive(0.0)) is not None:
            request = message["dap"]
            wanted = wanted or request["command"] in ("pause", "disconnect", "terminate")
            if request["command"] in ("disconnect", "terminate"):
                self.debugger.is_detached = False
            self._answer(request)
        if self.wire.is_closed:
            self.debugger.detach()
        if self._ends:
            raise SystemExit(0)
        return wanted

    def _send(self, message: Message) -> None:
        self.wire.send({"dap": message})

    def _stopped(self, event: StopEvent) -> None:
        debugger = self.debugger
        reason = "breakpoint" if debugger.hits and event.kind == "stop" else _REASONS.get(event.kind, "step")
        body: Answer = {"reason": reason, "threadId": self._thread(debugger.core), "allThreadsStopped": True}
        body["text"] = Commands(debugger).event_text(event)
        body["hitBreakpointIds"] = [hit.id for hit in debugger.hits]
        self._send({"type": "event", "event": "stopped", "body": body})

    def _take(self, message: Message | None) -> None:
        if message is None:
            self.debugger.detach()
            return
        self._answer(message["dap"])

    def _answer(self, request: Message) -> None:
        command, arguments = str(request["command"]), request.get("arguments") or {}
        response: Message = {"type": "response", "request_seq": request["seq"], "command": command}
        action = getattr(self, f"r_{command}", None)
        try:
            if action is None:
                raise DebugError(f"the request '{command}' is not supported")
            moved, body = None, action(arguments)
            if isinstance(body, StopEvent):
                moved, body = body, {}
            self._send({**response, "success": True, "body": body or {}})
            if moved is not None:
                self._children, self._event = [], moved
                self._stopped(moved)
        except (WseError, KeyError, ValueError, TypeError, IndexError) as fault:
            said = str(fault) if isinstance(fault, WseError) else f"{command}: {type(fault).__name__} {fault}"
            self._send({**response, "success": False, "message": said})

    # -- threads are cores, or classes

    def _threads(self) -> dict[int, int]:
        """Return the core that represents each thread."""
        image = self.debugger.view.image
        classes = np.asarray(image.core_class)
        runnable = np.flatnonzero(classes >= 0).tolist()
        if len(runnable) <= MOST_THREADS:
            return {core + 1: core for core in runnable}
        first = {int(classes[core]) + 1: core for core in reversed(runnable)}
        here = int(classes[self.debugger.core])
        return dict(sorted(first.items())) | ({here + 1: self.debugger.core} if here >= 0 else {})

    def _thread(self, core: int) -> int:
        return next(
            (thread for thread, shown_core in self._threads().items() if shown_core == core), core + 1
        )

    def _core(self, arguments: Answer) -> int:
        return self._threads().get(int(arguments.get("threadId", 0)), self.debugger.core)

    def r_threads(self, _: Answer) -> Answer:
        """List the cores, or the classes of cores."""
        view, found = self.debugger.view, []
        is_single = len(self._threads()) == int(np.count_nonzero(np.asarray(view.image.core_class) >= 0))
        for thread, core in self._threads().items():
            cls = view.cls(core)
            many = int(np.count_nonzero(view.image.core_class == view.image.core_class[core]))
            of = f" of {many} like it" if not is_single else ""
            name = cls.name.partition(":")[2] or cls.name if cls is not None else ""
            found.append({"id": thread, "name": f"{view.name(core)}{of}: {name}"})
        return {"threads": found}

    # -- the life of a session

    def r_configurationDone(self, arguments: Answer) -> None:
        """Finish the configuration; `stopOnEntry` is in the adapter's copy of the request."""
        self._is_configured, self._stops_first = True, bool(arguments.get("stopOnEntry"))

    def r_disconnect(self, arguments: Answer) -> None:
        """End the program, or let it continue without the debugger."""
        self._ends = bool(arguments.get("terminateDebuggee", True))
        self._is_configured = True
        self.debugger.detach()

    def r_terminate(self, _: Answer) -> None:
        """End the program and the session."""
        self.r_disconnect({"terminateDebuggee": True})

    # -- breakpoints

    def _replaced(
        self, old: list[int], add: Callable[[Answer], Answer], wanted: list[Answer]
    ) -> list[Answer]:
        for number in old:
            if number in self.debugger.breaks or number in self.debugger.watches:
                self.debugger.delete(number)
        old.clear()
        found = []
        for item in wanted:
            try:
                answer = add(item)
                old.append(answer["id"])
            except WseError as fault:
                answer = {"verified": False, "message": str(fault)}
            found.append(answer)
        return found

    def _limits(self, item: Answer) -> tuple[list[int], str]:
        """Parse ``cores SET``, ``cores SET if EXPRESSION`` or an expression into cores and condition."""
        text = str(item.get("condition") or "")
        match = _CORES.match(text)
        if match is None:
            return [], text
        return Commands(self.debugger).cores(match[1]), (match[2] or "").strip()

    def r_setBreakpoints(self, arguments: Answer) -> Answer:
        """Replace all breakpoints of a source file."""
        path = str(arguments["source"].get("path") or arguments["source"].get("name"))

        def add(item: Answer) -> Answer:
            cores, condition = self._limits(item)
            return self._broken(self.debugger.break_at(path, int(item["line"]), cores, condition))

        old = self._by_file.setdefault(path, [])
        return {"breakpoints": self._replaced(old, add, arguments.get("breakpoints") or [])}

    def r_setFunctionBreakpoints(self, arguments: Answer) -> Answer:
        """Replace all function breakpoints."""

        def add(item: Answer) -> Answer:
            cores, condition = self._limits(item)
            return self._broken(self.debugger.break_in(str(item["name"]), cores, condition))

        return {"breakpoints": self._replaced(self._functions, add, arguments.get("breakpoints") or [])}

    def _broken(self, point: BreakPoint) -> Answer:
        return {"id": point.id, "verified": True, "line": point.line, "source": _source(point.file)}

    def r_setExceptionBreakpoints(self, _: Answer) -> Answer:
        """Accept the request: faults always stop the program."""
        return {"breakpoints": []}

    def r_dataBreakpointInfo(self, arguments: Answer) -> Answer:
        """Return whether a variable can be watched; ``color N`` and ``queue in N`` always can."""
        core, name = self.debugger.core, str(arguments["name"])
        if not name.startswith(("color ", "queue ")):
            try:
                if self.debugger.view.place(core, name).address < 0:
                    raise DebugError(f"'{name}' is in a register")
            except WseError as fault:
                return {"dataId": None, "description": str(fault)}
        x, y = core % self.debugger.view.image.cols, core // self.debugger.view.image.cols
        described = f"{name} of {self.debugger.view.name(core)}"
        return {"dataId": f"{name} core {x},{y}", "description": described, "accessTypes": ["write"]}

    def r_setDataBreakpoints(self, arguments: Answer) -> Answer:
        """Replace all watchpoints."""

        def add(item: Answer) -> Answer:
            before = set(self.debugger.watches)
            condition = str(item.get("condition") or "").strip()
            only = f" if {condition}" if condition else ""
            said = Commands(self.debugger).execute(f"watch {item['dataId']}{only}")
            new: list[NamedWatch] = [w for k, w in self.debugger.watches.items() if k not in before]
            if not new:
                raise DebugError(said.removeprefix("error: "))
            return {"id": new[0].id, "verified": True}

        return {"breakpoints": self._replaced(self._data, add, arguments.get("breakpoints") or [])}

    # -- running

    def r_continue(self, _: Answer) -> Answer | StopEvent:
        """Run to the next stop."""
        return self.debugger.resume() or {"allThreadsContinued": True}

    def r_next(self, arguments: Answer) -> StopEvent | None:
        """Step one core by a line, over functions."""
        return self.debugger.step(OVER, self._core(arguments))

    def r_stepIn(self, arguments: Answer) -> StopEvent | None:
        """Step one core by a line, into functions."""
        return self.debugger.step(INTO, self._core(arguments))

    def r_stepOut(self, arguments: Answer) -> StopEvent | None:
        """Run one core until its function returns."""
        return self.debugger.step(OUT, self._core(arguments))

    def r_stepBack(self, arguments: Answer) -> StopEvent:
        """Step one core back by a line, over functions."""
        return self.debugger.step_back(OVER, self._core(arguments))

    def r_reverseContinue(self, _: Answer) -> StopEvent:
        """Go back to the previous stop."""
        return self.debugger.reverse()

    def r_pause(self, _: Answer) -> None:
        """Accept the request: :meth:`asks_pause` stops the program."""

    # -- looking

    def r_stackTrace(self, arguments: Answer) -> Answer:
        """Return the call stack of a core; for an idle core, one entry without a line."""
        core, view = self._core(arguments), self.debugger.view
        found: list[Answer] = []
        for i, frame in enumerate(view.frames(core)):
            file, line, function = view.lines.where(frame.row)
            entry: Answer = {"id": core * FRAMES + i + 1, "name": function or "?", "line": line, "column": 1}
            found.append(entry if file.startswith("<") else {**entry, "source": _source(file)})
        if not found:
            found = [
                {
                    "id": core * FRAMES + 1,
                    "name": view.state(core),
                    "line": 0,
                    "column": 0,
                    "presentationHint": "label",
                }
            ]
        first, count = int(arguments.get("startFrame") or 0), int(arguments.get("levels") or len(found))
        return {"stackFrames": found[first : first + count], "totalFrames": len(found)}

    def _kept(self, children: Children) -> int:
        self._children.append(children)
        return len(self._children)

    def r_scopes(self, arguments: Answer) -> Answer:
        """Return the scopes of a frame: locals, program variables, tasks, queues and routes of its core."""
        core, frame = divmod(int(arguments["frameId"]) - 1, FRAMES)
        view = self.debugger.view
        parts: dict[str, Children] = {
            "Locals": lambda: [(p.name, view.of_place(core, p), p.type) for p in view.locals(core, frame)],
            "Program": lambda: [
                (s.name, view.of_place(core, view.named(core, s.name)), s.type) for s in view.globals(core)
            ],
            "Tasks": lambda: [
                (text.partition(":")[0], text.partition(": ")[2], "") for text in view.tasks(core)
            ],
            "Queues": lambda: self._queues(core),
            "Routes": lambda: [
                (text.partition(":")[0], text.partition(": ")[2], "") for text in view.routes(core)
            ],
        }
        found = [
            {"name": name, "variablesReference": self._kept(children), "expensive": name != "Locals"}
            for name, children in parts.items()
        ]
        return {"scopes": found}

    def _queues(self, core: int) -> list[tuple[str, Datum, str]]:
        found: list[tuple[str, Datum, str]] = []
        for queue in self.debugger.view.queues(core):
            words: list[Datum] = [f"{word.value:#010x} from {word.origin}" for word in queue.words]
            found.append((f"{queue.name}, color {queue.color}", words, ""))
        return found

    def _variable(self, name: str, value: Datum, kind: str) -> Answer:
        inner: Children | None = None
        if isinstance(value, list):
            items = list(value)
            inner = lambda: [(f"[{i}]", item, "") for i, item in enumerate(items)]  # noqa: E731
        elif isinstance(value, dict):
            fields = dict(value)
            inner = lambda: [(key, item, "") for key, item in fields.items()]  # noqa: E731
        answer: Answer = {"name": name, "value": shown(value), "type": kind}
        answer["variablesReference"] = self._kept(inner) if inner is not None else 0
        if isinstance(value, list):
            answer["indexedVariables"] = len(value)
        return answer

    def r_variables(self, arguments: Answer) -> Answer:
        """Return the contents of a scope, an array or a structure."""
        number = int(arguments["variablesReference"])
        if not 1 <= number <= len(self._children):
            raise DebugError("these variables belong to an earlier stop")
        rows = self._children[number - 1]()
        first = int(arguments.get("start") or 0)
        count = int(arguments.get("count") or len(rows))
        return {"variables": [self._variable(*row) for row in rows[first : first + count]]}

    def r_evaluate(self, arguments: Answer) -> Answer:
        """Evaluate an expression, or in the editor's console a command that does not run the program."""
        text = str(arguments["expression"])
        core, frame = self.debugger.core, 0
        if arguments.get("frameId"):
            core, frame = divmod(int(arguments["frameId"]) - 1, FRAMES)
        try:
            value = self.debugger.view.value(core, text, frame)
        except DebugError:
            if arguments.get("context") != "repl" or text.split(" ", maxsplit=1)[0] not in LOOKING:
                raise
            return {"result": Commands(self.debugger).execute(text), "variablesReference": 0}
        found = self._variable("", value, "")
        return {"result": found["value"], "variablesReference": found["variablesReference"]}


LOOKING = (
    "backtrace",
    "bt",
    "breaks",
    "core",
    "cores",
    "globals",
    "help",
    "list",
    "locals",
    "origin",
    "print",
    "p",
    "queues",
    "routes",
    "tasks",
)
"""Debugger commands that an editor's console accepts."""


def _source(file: str) -> Answer:
    return {"name": Path(file).name, "path": str(Path(file).resolve())}
