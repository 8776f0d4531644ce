"""Routes of the endpoint: completions, chat, models, tokens, health, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from wse_sim._version import __version__
from wse_sim.endpoint.metrics import ServiceMetrics
from wse_sim.endpoint.requests import AskedCompletion, ReplyForm, asked, fault, read_body, tokens_of
from wse_sim.endpoint.simulated_clock import Caller, QueueFullError, ServicePump
from wse_sim.errors import WseError
from wse_sim.serving.base import ServingError
from wse_sim.serving.live import LiveReplicas, LiveTimes
from wse_sim.serving.router import ROUND_ROBIN
from wse_sim.serving.run import Replica
from wse_sim.serving.workload import OUTPUTS, lengths

DRAWN_AT_ONCE = 256


@dataclass(frozen=True)
class EndpointLimits:
    """Limits of the endpoint; a time scale of 2 is half as fast as the wafer, 0 as fast as the host can."""

    max_queue: int = 1024
    max_body_bytes: int = 4 * 2**20
    time_scale: float = 1.0
    output_law: str = "lognormal:200:200"  # of answers whose length a client of chats leaves open
    seed: int = 0
    router: str = ROUND_ROBIN


class TooLargeError(WseError):
    """A body over the limit."""


def application(model: str, replica: Replica, replicas: int, limits: EndpointLimits) -> Starlette:
    """The application; its lines begin when it starts up."""
    return _Endpoint(model, replica, replicas, limits).app


class _Endpoint:
    def __init__(self, model: str, replica: Replica, replicas: int, limits: EndpointLimits) -> None:
        self.model, self.limits = model, limits
        self.metrics = ServiceMetrics(model, replica.rules.block_tokens, replica.rules.blocks * replicas)
        self.replica, self.replicas = replica, replicas
        self.context = min(replica.table.most_context, replica.rules.blocks * replica.rules.block_tokens)
        self._number = 0
        self._draw = np.random.Generator(np.random.Philox(key=[limits.seed, OUTPUTS]))
        self._drawn: list[int] = lengths(
            limits.output_law, 1, self._draw
        ).tolist()  # refused here if it is none
        self._pump: ServicePump | None = None
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/health", self.health),
                Route("/ping", self.health, methods=["GET", "POST"]),
                Route("/version", self.version),
                Route("/metrics", self.scraped),
                Route("/metrics/", self.scraped),
            ],
            lifespan=self._life,
        )

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self._pump = ServicePump(
            LiveReplicas(self.replica, self.replicas, self.limits.router), time_scale=self.limits.time_scale,
            most_waiting=self.limits.max_queue, metrics=self.metrics,
        )  # fmt: skip
        task = asyncio.create_task(self._pump.run())
        task.add_done_callback(lambda ended: self._ended(app, ended))
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    def _ended(self, app: Starlette, task: asyncio.Task[None]) -> None:
        """Stop the server after a fault of the simulator, since no client would receive more tokens."""
        if not task.cancelled() and (fault_ := task.exception()) is not None:
            app.state.fault = fault_
            signal.raise_signal(signal.SIGTERM)

    @property
    def pump(self) -> ServicePump:
        """The lines; they are there while the application runs."""
        assert self._pump is not None
        return self._pump

    async def health(self, request: Request) -> Response:
        """Alive."""
        return Response(status_code=200)

    async def scraped(self, request: Request) -> Response:
        """Metrics, in the format that the scraper accepts."""
        encoded, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoded(self.metrics.registry), headers={"content-type": media_type})

    async def version(self, request: Request) -> Response:
        """The version of this program."""
        return JSONResponse({"version": __version__})

    async def models(self, request: Request) -> Response:
        """The one model."""
        one = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "wse_sim",
            "max_model_len": self.context,
        }
        return JSONResponse({"object": "list", "data": [one]})

    async def tokenize(self, request: Request) -> Response:
        """Tokens of a prompt."""
        try:
            data = read_body(await self._body(request))
            ids = asked(data, is_chat=True).prompts[0] if "messages" in data else None
            ids = tokens_of(str(data.get("prompt", ""))) if ids is None else ids
        except WseError as refused:
            return _refused(refused)
        return JSONResponse({"count": len(ids), "max_model_len": self.context, "tokens": list(ids)})

    async def completions(self, request: Request) -> Response:
        """Answers to prompts."""
        return await self._answered(request, is_chat=False)

    async def chat(self, request: Request) -> Response:
        """An answer to messages."""
        return await self._answered(request, is_chat=True)

    async def _body(self, request: Request) -> bytes:
        """The body, up to the limit.

        Raises
        ------
        TooLargeError
            If it is longer.
        """
        limit, parts, size = self.limits.max_body_bytes, [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise TooLargeError(
                    f"the body is longer than {limit:,} bytes; send a shorter prompt (--max-body)"
                )
            parts.append(part)
        return b"".join(parts)

    async def _answered(self, request: Request, *, is_chat: bool) -> Response:
        try:
            ask = asked(read_body(await self._body(request)), is_chat=is_chat)
            if ask.model not in ("", self.model):
                return JSONResponse(
                    fault(f"model '{ask.model[:80]}' is not served here; use {self.model}", "NotFoundError", 404), 404
                )  # fmt: skip
            wanted = [
                (prompt, self._length(ask, prompt)) for prompt in ask.prompts for _ in range(ask.copies)
            ]
            callers = self.pump.submit(wanted)
        except ClientDisconnect:
            return Response(status_code=499)
        except WseError as refused:
            return _refused(refused)
        self._number += 1
        form = ReplyForm(ask, self.model, self._number)
        if ask.is_stream:
            return StreamingResponse(self._stream(request, form, callers), media_type="text/event-stream")
        return await self._whole(request, form, callers)

    def _length(self, ask: AskedCompletion, prompt: tuple[int, ...]) -> int:
        """Number of tokens of the answer: as requested, else drawn, at most what the context leaves."""
        if ask.output_tokens is not None:
            return ask.output_tokens
        left = self.context - len(prompt)
        if left < 1:
            raise ServingError(
                f"a prompt of {len(prompt):,} tokens fills the context of {self.context:,}; shorten it"
            )
        if not self._drawn:
            self._drawn = lengths(self.limits.output_law, DRAWN_AT_ONCE, self._draw).tolist()
        return min(left, int(self._drawn.pop()))

    async def _whole(self, request: Request, form: ReplyForm, callers: list[Caller]) -> Response:
        """Wait for all tokens, or until the client has gone."""
        gone = asyncio.create_task(_until_gone(request))
        every = asyncio.create_task(_complete(callers))
        try:
            await asyncio.wait((gone, every), return_when=asyncio.FIRST_COMPLETED)
            if not every.done():
                return Response(status_code=499)
            return JSONResponse(form.whole([one.output_tokens for one in callers], _times(callers)))
        finally:
            gone.cancel()
            every.cancel()
            for caller in callers:
                self.pump.leave(caller)

    async def _stream(self, request: Request, form: ReplyForm, callers: list[Caller]) -> AsyncIterator[str]:
        """Events of a stream, until the client has gone."""
        ready: asyncio.Queue[tuple[int, int, bool]] = asyncio.Queue()
        tasks = [asyncio.create_task(_forward(n, one, ready)) for n, one in enumerate(callers)]
        tasks.append(asyncio.create_task(_tell_gone(request, ready)))
        sent, left = [0] * len(callers), len(callers)
        try:
            while left:
                index, count, is_last = await ready.get()
                if index < 0:
                    return
                left -= is_last
                times = () if left else _times(callers)
                yield _event(form.piece(index, sent[index], count, is_last=is_last, times=times))
                sent[index] += count
            if form.ask.with_usage:
                yield _event(form.last(sent))
            yield "data: [DONE]\n\n"
        finally:
            for task in tasks:
                task.cancel()
            for caller in callers:
                self.pump.leave(caller)


def _times(callers: list[Caller]) -> list[LiveTimes]:
    return [one.times for one in callers if one.times is not None]


async def _complete(callers: list[Caller]) -> None:
    for caller in callers:
        while not (await caller.back.get()).is_last:
            pass


async def _forward(index: int, caller: Caller, ready: asyncio.Queue[tuple[int, int, bool]]) -> None:
    is_last = False
    while not is_last:
        token = await caller.back.get()
        is_last = token.is_last
        ready.put_nowait((index, token.tokens, is_last))


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _tell_gone(request: Request, ready: asyncio.Queue[tuple[int, int, bool]]) -> None:
    await _until_gone(request)
    ready.put_nowait((-1, 0, True))


def _event(data: dict[str, object]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


def _refused(why: WseError) -> Response:
    """400, 413 of a body, 429 of a full queue."""
    if isinstance(why, QueueFullError):
        return JSONResponse(fault(str(why), "RateLimitError", 429), 429, headers={"Retry-After": "1"})
    status = 413 if isinstance(why, TooLargeError) else 400
    return JSONResponse(fault(str(why), "BadRequestError", status), status)
