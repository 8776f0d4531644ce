"""Requests of OpenAI's interface, validated, and the answers in the expected form.

Text is filler: a token is a piece of four characters, so that prompts with equal beginnings have equal
tokens.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wse_sim.serving.base import TICK_S, ServingError
from wse_sim.serving.live import LiveTimes

CHARACTERS = 4
FILLER = (" the", " sun", " has", " set", " and", " all", " our", " men", " now", " may", " see", " how")
COMPLETION_TOKENS = 16  # where a client says nothing, as OpenAI has it
MOST_CHOICES = 128
Json = Mapping[str, object]


@dataclass(frozen=True)
class AskedCompletion:
    """A request: ids of each prompt's tokens, tokens of each answer (None: as many as the context leaves)."""

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int | None
    copies: int
    is_stream: bool
    with_usage: bool
    is_chat: bool
    model: str


def tokens_of(text: str) -> tuple[int, ...]:
    """Ids of the tokens of a text."""
    pieces = (text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS))
    return tuple(zlib.crc32(piece.encode("utf-8", "replace")) for piece in pieces)


def filler(first: int, count: int) -> str:
    """Text of some tokens of an answer."""
    return "".join(FILLER[number % len(FILLER)] for number in range(first, first + count))


def read_body(body: bytes) -> Json:
    """The object of a body.

    Raises
    ------
    ServingError
        If it is not one.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ServingError("the body is not a JSON object; send one as OpenAI's interface describes")
    return data


def asked(data: Json, *, is_chat: bool) -> AskedCompletion:
    """A request of a body.

    Raises
    ------
    ServingError
        If a field has another form.
    """
    prompts = (_of_messages(data.get("messages")),) if is_chat else _of_prompt(data.get("prompt"))
    most = data.get("max_completion_tokens", data.get("max_tokens"))
    options = data.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ServingError("stream_options is not an object; give one, e.g. with include_usage")
    stream, model = data.get("stream", False), data.get("model", "")
    if not isinstance(stream, bool | None):
        raise ServingError(f"stream {stream!r} is neither true nor false; give one of them")
    if not isinstance(model, str | None):
        raise ServingError("model is not text; give the name that /v1/models lists")
    return AskedCompletion(
        prompts=prompts,
        output_tokens=_whole("max_tokens", most, None if is_chat else COMPLETION_TOKENS, 10**9),
        copies=_whole("n", data.get("n"), 1, MOST_CHOICES) or 1,
        is_stream=bool(stream),
        with_usage=bool((options or {}).get("include_usage")),
        is_chat=is_chat,
        model=model or "",
    )


def _whole(name: str, value: object, default: int | None, most: int) -> int | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ServingError(f"{name} {str(value)[:40]} is invalid; give an integer from 1 to {most:,}")
    return value


def _of_prompt(prompt: object) -> tuple[tuple[int, ...], ...]:
    """Ids of each prompt: of a text, a list of ids, or a list of either."""
    parts = prompt if isinstance(prompt, list) and prompt and not _are_ids(prompt) else [prompt]
    found: list[tuple[int, ...]] = []
    for part in parts:
        if isinstance(part, str) and part:
            found.append(tokens_of(part))
        elif isinstance(part, list) and _are_ids(part):
            found.append(tuple(part))
        else:
            raise ServingError("prompt is neither a text nor a list of tokens, or is empty; give one")
    if len(found) > MOST_CHOICES:
        raise ServingError(f"{len(found)} prompts are more than {MOST_CHOICES}; send them one by one")
    return tuple(found)


def _are_ids(part: object) -> bool:
    return (
        isinstance(part, list) and bool(part) and all(type(one) is int and abs(one) < 2**63 for one in part)
    )


def _of_messages(messages: object) -> tuple[int, ...]:
    if not isinstance(messages, list) or not messages:
        raise ServingError("messages is not a list, or is empty; give one of {role, content}")
    text = []
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            raise ServingError(f"message {number} has no content; give a text, or a list of parts with text")
        text.append(f"{message.get('role', '')}: {content}\n")
    return tokens_of("".join(text))


class ReplyForm:
    """Formats the complete answer or the stream of one request."""

    def __init__(self, ask: AskedCompletion, model: str, number: int) -> None:
        self.ask, self.model = ask, model
        self.created = int(time.time())
        self.id = f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{number}"

    def whole(self, lengths: Sequence[int], times: Sequence[LiveTimes]) -> dict[str, object]:
        """A whole answer, of choices of some lengths."""
        choices = []
        for index, length in enumerate(lengths):
            text = filler(0, length)
            part: dict[str, object] = (
                {"message": {"role": "assistant", "content": text}} if self.ask.is_chat else {"text": text}
            )
            choices.append({"index": index, **part, "logprobs": None, "finish_reason": "length"})
        return {
            **self._head("chat.completion" if self.ask.is_chat else "text_completion"),
            "choices": choices,
            "usage": self.usage(lengths),
            "time_info": self.time_info(times),
        }

    def piece(
        self, index: int, first: int, count: int, *, is_last: bool, times: Sequence[LiveTimes] = ()
    ) -> dict[str, object]:
        """Some tokens of a choice; the last piece of a stream has the times of all its choices."""
        text = filler(first, count)
        delta: dict[str, object] = {"content": text} if first else {"role": "assistant", "content": text}
        part: dict[str, object] = {"delta": delta} if self.ask.is_chat else {"text": text}
        choice = {"index": index, **part, "logprobs": None, "finish_reason": "length" if is_last else None}
        found = {**self._chunk(), "choices": [choice]}
        return found | ({"time_info": self.time_info(times)} if times else {})

    def last(self, lengths: Sequence[int]) -> dict[str, object]:
        """The final piece of a stream whose client requested usage."""
        return {**self._chunk(), "choices": [], "usage": self.usage(lengths)}

    def usage(self, lengths: Iterable[int]) -> dict[str, int]:
        """Tokens of prompts and answers."""
        asked_, given = sum(map(len, self.ask.prompts)), sum(lengths)
        return {"prompt_tokens": asked_, "completion_tokens": given, "total_tokens": asked_ + given}

    def time_info(self, times: Sequence[LiveTimes]) -> dict[str, float]:
        """Simulated seconds of the choice that ended last."""
        slow = max(times, key=lambda one: one.last)
        return {
            "queue_time": (slow.admitted - slow.arrival) * TICK_S,
            "prompt_time": (slow.first - slow.admitted) * TICK_S,
            "completion_time": (slow.last - slow.first) * TICK_S,
            "total_time": (slow.last - slow.arrival) * TICK_S,
            "created": float(self.created),
        }

    def _chunk(self) -> dict[str, object]:
        return self._head("chat.completion.chunk" if self.ask.is_chat else "text_completion")

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def fault(message: str, kind: str, status: int) -> dict[str, object]:
    """An error as clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
