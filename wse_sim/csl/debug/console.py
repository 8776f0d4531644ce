"""Console of the debugger: its commands as lines of text, and the front end that reads them."""

from __future__ import annotations

import re
from collections.abc import Callable

from wse_sim.csl.debug.debugger import INTO, OUT, OVER, Debugger
from wse_sim.csl.debug.lines import DebugError
from wse_sim.csl.debug.values import shown
from wse_sim.csl.debug.wire import EditorWire
from wse_sim.errors import WseError
from wse_sim.fabric.vm.replay import StopEvent
from wse_sim.fabric.vm.watch_points import MemoryWatch

_PART = re.compile(r"(\d{1,6})(?::(\d{1,6}))?,(\d{1,6})(?::(\d{1,6}))?")
_KIND_TEXT = {
    "loaded": "loaded; set breakpoints, then 'continue'",
    "cycle": "stopped",
    "pause": "paused",
    "begin": "the first known state",
    "present": "the present, where the host waits",
}


class Commands:
    """Interpreter of command lines; a command that continues the program from its present place releases the
    debugger."""

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self.is_quit = False
        self._frame = 0

    def execute(self, line: str) -> str:
        """Execute a command line and return its answer, or its error message."""
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith("#"):
            return ""
        found = _ALIASES.get(name, name)
        action: Callable[[Commands, str], str] | None = _COMMANDS.get(found)
        if action is None:
            return f"there is no command '{name}'; 'help' lists them"
        try:
            return action(self, rest.strip())
        except WseError as fault:
            return f"error: {fault}"

    # -- words

    def cores(self, text: str) -> list[int]:
        """Parse ``X,Y`` or ``X0:X1,Y0:Y1`` (ends not included), several joined by +, into core numbers.

        Raises
        ------
        DebugError
            If the text has another form or names cores that the program does not have.
        """
        image, found = self.debugger.view.image, []
        for part in text.split("+"):
            match = _PART.fullmatch(part.strip())
            if match is None:
                raise DebugError(
                    f"'{part.strip()[:40]}' names no cores; give X,Y or X0:X1,Y0:Y1 (ends not included)"
                )
            x0, y0 = int(match[1]), int(match[3])
            x1, y1 = int(match[2] or x0 + 1), int(match[4] or y0 + 1)
            if not (x0 < x1 <= image.cols and y0 < y1 <= image.rows):
                raise DebugError(
                    f"cores {part.strip()} are not in the rectangle of {image.cols} x {image.rows}"
                )
            found += [y * image.cols + x for y in range(y0, y1) for x in range(x0, x1)]
        return found

    def event_text(self, event: StopEvent) -> str:
        """Return why the program stopped and where the selected core is."""
        debugger, self._frame = self.debugger, 0
        view, core = debugger.view, debugger.core
        cycle = f"cycle {event.cycle:,}"
        if event.kind in ("fault", "ended"):
            head = f"{cycle}: {event.text}"
        elif event.kind == "watch" and isinstance(event.watch, MemoryWatch):
            point = event.watch
            who = event.text or view.where(event.row)
            hit = next((w for w in debugger.watches.values() if w.point is point), None)
            head = f"watchpoint {hit.id if hit else '?'}, {cycle}: {hit.name if hit else 'words'} written by {who}{self._change(point, event.before)}"
        elif event.kind == "watch":
            hit = next((w for w in debugger.watches.values() if w.point is event.watch), None)
            head = f"watchpoint {hit.id if hit else '?'}, {cycle}: a word at {hit.name if hit else 'it'}"
        elif debugger.hits:
            also = f" and {len(event.cores) - 1} more cores" if len(event.cores) > 1 else ""
            head = f"breakpoint {debugger.hits[0].id}, {cycle}: {view.name(core)}{also}"
        else:
            head = f"{cycle}: {_KIND_TEXT.get(event.kind, view.name(core))}"
        return "\n".join([head, *self._place(core)])

    def _change(self, point: MemoryWatch, before: tuple[int, ...]) -> str:
        now = point.now(self.debugger.session.machine)
        changed = [i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
        if not changed:
            return ", with the value that it had"
        first, last = changed[0], changed[-1]
        return f", word{'s' * (first < last)} {first if first == last else f'{first} to {last}'}"

    def _place(self, core: int) -> list[str]:
        view = self.debugger.view
        frames = view.frames(core)
        if not frames:
            return [view.state(core)]
        row = frames[0].row
        return [f"{view.where(row)}    {view.lines.text(row).strip()}"]

    def _moved(self, event: StopEvent | None) -> str:
        return "" if event is None else self.event_text(event)

    # -- commands

    def c_break(self, rest: str, *, is_temporary: bool = False) -> str:
        """break FILE:LINE | FUNCTION [cores SET] [if EXPRESSION]"""
        head, _, condition = rest.partition(" if ")
        where, _, cores = head.partition(" cores ")
        chosen = self.cores(cores) if cores.strip() else []
        file, colon, line = where.strip().rpartition(":")
        if colon and line.isdigit():
            found = self.debugger.break_at(
                file, int(line), chosen, condition.strip(), is_temporary=is_temporary
            )
        elif where.strip().isdigit():
            here = self.debugger.view.frames(self.debugger.core)
            if not here:
                raise DebugError("there is no current line; give FILE:LINE")
            name = self.debugger.lines.where(here[0].row)[0]
            found = self.debugger.break_at(
                name, int(where), chosen, condition.strip(), is_temporary=is_temporary
            )
        else:
            found = self.debugger.break_in(
                where.strip(), chosen, condition.strip(), is_temporary=is_temporary
            )
        return str(found)

    def c_tbreak(self, rest: str) -> str:
        """tbreak ...: like break, but the breakpoint is deleted when it is hit"""
        return self.c_break(rest, is_temporary=True)

    def c_watch(self, rest: str) -> str:
        """watch VARIABLE | color N | queue in N | queue out N  [core X,Y] [if EXPRESSION]"""
        head, _, condition = rest.partition(" if ")
        what, _, place = head.partition(" core ")
        core = self.cores(place)[0] if place.strip() else self.debugger.core
        words = what.split()
        if len(words) == 2 and words[0] == "color":
            return str(self.debugger.watch_color(_number(words[1]), core, condition.strip()))
        if len(words) == 3 and words[0] == "queue" and words[1] in ("in", "out"):
            is_input = words[1] == "in"
            return str(
                self.debugger.watch_queue(_number(words[2]), core, condition.strip(), is_input=is_input)
            )
        return str(self.debugger.watch_variable(what.strip(), core, condition.strip()))

    def c_delete(self, rest: str) -> str:
        """delete [NUMBER]: delete one breakpoint or watchpoint, or all of them"""
        if rest:
            self.debugger.delete(_number(rest))
        else:
            self.debugger.delete_all()
        return ""

    def c_breaks(self, rest: str) -> str:
        """breaks: list breakpoints and watchpoints"""
        del rest
        both = [*self.debugger.breaks.values(), *self.debugger.watches.values()]
        return "\n".join(map(str, both)) or "none"

    def c_continue(self, rest: str) -> str:
        """continue: run to the next breakpoint, watchpoint, fault or end"""
        del rest
        return self._moved(self.debugger.resume())

    def c_step(self, rest: str) -> str:
        """step: run the selected core to its next line, entering functions"""
        del rest
        return self._moved(self.debugger.step(INTO))

    def c_next(self, rest: str) -> str:
        """next: run the selected core to its next line, stepping over functions"""
        del rest
        return self._moved(self.debugger.step(OVER))

    def c_finish(self, rest: str) -> str:
        """finish: run until the present function returns"""
        del rest
        return self._moved(self.debugger.step(OUT))

    def c_cycles(self, rest: str) -> str:
        """cycles N: advance all cores by N cycles"""
        return self._moved(self.debugger.step_cycles(_number(rest or "1")))

    def c_back(self, rest: str) -> str:
        """back N: return all cores to their state N cycles ago"""
        return self._moved(self.debugger.back(_number(rest or "1")))

    def c_reverse_continue(self, rest: str) -> str:
        """reverse-continue: go back to the previous hit of a breakpoint or watchpoint"""
        del rest
        return self._moved(self.debugger.reverse())

    def c_reverse_step(self, rest: str) -> str:
        """reverse-step: move the selected core back to its previous line"""
        del rest
        return self._moved(self.debugger.step_back(INTO))

    def c_reverse_next(self, rest: str) -> str:
        """reverse-next: move back one line, stepping over functions"""
        del rest
        return self._moved(self.debugger.step_back(OVER))

    def c_present(self, rest: str) -> str:
        """present: return to the present, where the host waits"""
        del rest
        self.debugger.session.return_to_present()
        return self.event_text(StopEvent("present", self.debugger.session.cycle))

    def c_core(self, rest: str) -> str:
        """core [X,Y]: select a core, or show the state of the selected one"""
        if rest:
            self.debugger.core, self._frame = self.cores(rest)[0], 0
        return self.debugger.view.state(self.debugger.core)

    def c_cores(self, rest: str) -> str:
        """cores: show what the cores of every class do"""
        del rest
        return "\n".join(self.debugger.session.doing())

    def c_frame(self, rest: str) -> str:
        """frame N: select a frame; 0 is the innermost function"""
        frames = self.debugger.view.frames(self.debugger.core)
        if not 0 <= _number(rest or "0") < len(frames):
            raise DebugError(f"frame {rest} does not exist; there are {len(frames)}, counted from 0")
        self._frame = _number(rest or "0")
        return self.debugger.view.where(frames[self._frame].row)

    def c_print(self, rest: str) -> str:
        """print EXPRESSION: names, .fields, [elements], [a:b], .*, numbers, operators"""
        return f"{rest} = {shown(self.debugger.view.value(self.debugger.core, rest, self._frame))}"

    def c_locals(self, rest: str) -> str:
        """locals: show the names that are visible in the selected frame"""
        del rest
        view, core = self.debugger.view, self.debugger.core
        return "\n".join(
            f"{place.name}: {place.type} = {shown(view.of_place(core, place))}"
            for place in view.locals(core, self._frame)
        )

    def c_globals(self, rest: str) -> str:
        """globals: show the variables of the selected core's program"""
        del rest
        view, core = self.debugger.view, self.debugger.core
        return "\n".join(
            f"{s.name}: {s.type} = {shown(view.of_place(core, view.named(core, s.name)))[:160]}"
            for s in view.globals(core)
        )

    def c_backtrace(self, rest: str) -> str:
        """backtrace: show the call stack of the selected core"""
        del rest
        view, core = self.debugger.view, self.debugger.core
        lines = [f"{i}  {view.where(frame.row)}" for i, frame in enumerate(view.frames(core))]
        return "\n".join([*lines, view.state(core)])

    def c_queues(self, rest: str) -> str:
        """queues: show the queues of the core and its router, with the sender of every word"""
        del rest
        lines = []
        for queue in self.debugger.view.queues(self.debugger.core):
            lines.append(
                f"{queue.name}, color {queue.color}: {len(queue.words)} word{'s' * (len(queue.words) != 1)}"
            )
            for word in queue.words:
                lines.append(f"    {word.value:#010x}{' control' * word.is_control}  from {word.origin}")
        return "\n".join(lines) or "no queue is bound"

    def c_routes(self, rest: str) -> str:
        """routes: show the routes and switch positions of the core's router"""
        del rest
        return "\n".join(self.debugger.view.routes(self.debugger.core)) or "no route"

    def c_tasks(self, rest: str) -> str:
        """tasks: show the tasks of the core and whether they are active, blocked or running"""
        del rest
        return "\n".join(self.debugger.view.tasks(self.debugger.core)) or "no task"

    def c_origin(self, rest: str) -> str:
        """origin VARIABLE: show what wrote it last, and the sender of the word that it received"""
        return self.debugger.origin(rest, self.debugger.core)

    def c_list(self, rest: str) -> str:
        """list: show source lines around the present one"""
        del rest
        view = self.debugger.view
        frames = view.frames(self.debugger.core)
        if not frames:
            raise DebugError(f"{view.name(self.debugger.core)} is in no function")
        row = frames[min(self._frame, len(frames) - 1)].row
        _, line, _ = view.lines.where(row)
        lines = view.lines.source(row)
        first = max(0, line - 6)
        return "\n".join(
            f"{'>' if k == line else ' '}{k:5}  {text}"
            for k, text in enumerate(lines[first : line + 5], first + 1)
        )

    def c_detach(self, rest: str) -> str:
        """detach: run the program to its end without stops"""
        del rest
        self.debugger.detach()
        return ""

    def c_quit(self, rest: str) -> str:
        """quit: end the program and the session"""
        del rest
        self.is_quit = True
        self.debugger.detach()
        return ""

    def c_help(self, rest: str) -> str:
        """help: list the commands"""
        del rest
        return "\n".join(str(action.__doc__) for action in _COMMANDS.values())


_COMMANDS: dict[str, Callable[[Commands, str], str]] = {
    name[2:].replace("_", "-"): action for name, action in vars(Commands).items() if name.startswith("c_")
}
_ALIASES = {
    "b": "break", "tb": "tbreak", "c": "continue", "s": "step", "n": "next", "fin": "finish", "p": "print", "bt": "backtrace",
    "rc": "reverse-continue", "rs": "reverse-step", "rn": "reverse-next", "d": "delete", "l": "list", "q": "quit", "h": "help",
}  # fmt: skip


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text.strip()):
        raise DebugError(f"'{text.strip()[:40]}' is not an integer")
    return int(text)


class ConsoleFront:
    """Front end that reads commands over a wire, one at each prompt."""

    def __init__(self, wire: EditorWire) -> None:
        self.wire = wire
        self._commands: Commands | None = None

    def __call__(self, debugger: Debugger, event: StopEvent) -> None:
        """Read and execute commands until one resumes the program."""
        if self._commands is None:
            self._commands = Commands(debugger)
            debugger.asks_pause = self.asks_pause
        commands = self._commands
        self.wire.send({"text": commands.event_text(event)})
        while not debugger.is_released:
            self.wire.send({"prompt": "(csl) "})
            message = self.wire.receive()
            if message is None:
                debugger.detach()
                break
            said = commands.execute(str(message.get("command", "")))
            if said:
                self.wire.send({"text": said})
        if commands.is_quit:
            raise SystemExit(0)

    def asks_pause(self) -> bool:
        """Return whether the user has requested a pause."""
        message = self.wire.receive(0.0)
        return message is not None and bool(message.get("pause"))
