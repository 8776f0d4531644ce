"""The endpoint, driven by OpenAI's client over a socket: answers, streams, limits, clients that disconnect, metrics."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from tests.serving.made import open_of, table_of_ticks
from wse_sim.serving.base import TICK_S, ServingError, ServingRules
from wse_sim.serving.line import serve_reference
from wse_sim.serving.run import Replica

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
prometheus = pytest.importorskip("prometheus_client.parser")
pytest.importorskip("starlette")

from wse_sim.endpoint.app import EndpointLimits, application  # noqa: E402  # they need what is not always installed
from wse_sim.endpoint.requests import asked, filler, tokens_of  # noqa: E402
from wse_sim.endpoint.server import address_of, listening  # noqa: E402

US = round(1e-6 / TICK_S)
TABLE = table_of_ticks([[100 * US + 10 * US * n for n in range(1, 9)]] * 3, grid=1000)
WAITS_S = 60.0
"""For an answer, in seconds of the wall."""
REPLICA = Replica(TABLE, ServingRules(blocks=200, turn_tokens=8))


@contextmanager
def serving(replica: Replica = REPLICA, **limits: object) -> Iterator[int]:
    """Start a server on a free port, as fast as the host can unless stated otherwise."""
    place = listening("127.0.0.1:0")
    app = application("toy", replica, 1, EndpointLimits(**{"time_scale": 0.0, **limits}))  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    assert server.started
    try:
        yield place.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True  # or it waits for answers that never come
        thread.join(10)
        assert not thread.is_alive()
        place.close()


def client(port: int) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=WAITS_S
    )


def metrics(port: int) -> dict[str, float]:
    """Return the samples by name, labels left out, sums over them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/", timeout=WAITS_S) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for family in prometheus.text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason", "")
            for name in (sample.name, f"{sample.name}{{{reason}}}"):
                found[name] = found.get(name, 0.0) + sample.value
    return found


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as found:
        yield found


def test_answers_take_the_simulated_time_of_a_run(port: int) -> None:
    """A lone request of 8 pieces of text and 5 tokens, complete and as a stream, equals the reference engine to the
    tick.
    """
    text = "it has thirty-two characters now"
    served = serve_reference(open_of((0, 8, 5)), REPLICA.rules, TABLE)
    answer = client(port).completions.create(model="toy", prompt=text, max_tokens=5)
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13,
    }  # fmt: skip
    info = answer.model_extra["time_info"]
    assert info["prompt_time"] == pytest.approx(served.first_ticks[0] * TICK_S)
    assert info["total_time"] == pytest.approx(served.last_ticks[0] * TICK_S)
    assert len(tokens_of(answer.choices[0].text)) == 5
    chunks = list(
        client(port).completions.create(
            model="toy", prompt=[1, 2, 3, 4, 5, 6, 7, 8], max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )  # fmt: skip
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == answer.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 4 + ["length"]
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-2].model_extra["time_info"]["total_time"] == pytest.approx(info["total_time"])


@pytest.mark.slow
def test_a_chat_that_names_no_length_gets_a_drawn_one() -> None:
    """The length follows the distribution (uniform from 3 to 5), and is never the complete context."""
    with serving(output_law="uniform:3:5") as port:
        ask = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}
        found = {client(port).chat.completions.create(**ask).usage.completion_tokens for _ in range(30)}
    assert found == {3, 4, 5}


def test_a_fault_of_the_simulator_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients do not wait forever: the fault is stored for the command, and a signal ends the server."""
    raised: list[int] = []
    monkeypatch.setattr("wse_sim.endpoint.app.signal.raise_signal", raised.append)
    monkeypatch.setattr("wse_sim.endpoint.metrics.ServiceMetrics.turn", lambda *_: 1 / 0)
    with serving() as port:
        body = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, timeout=1)
    assert len(raised) == 1


def test_chat_copies_and_lists_of_prompts(port: int) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "user", "content": "you"},
    ]
    answer = client(port).chat.completions.create(model="toy", messages=messages, max_tokens=3, n=2)
    assert [choice.message.content for choice in answer.choices] == [filler(0, 3)] * 2
    assert answer.usage.completion_tokens == 6
    pieces = client(port).chat.completions.create(model="toy", messages=messages, max_tokens=3, stream=True)
    assert "".join(piece.choices[0].delta.content for piece in pieces) == filler(0, 3)
    both = client(port).completions.create(model="toy", prompt=["one", [1, 2, 3]], max_tokens=2)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [one.id for one in client(port).models.list()] == ["toy"]


@pytest.mark.slow
def test_many_at_once_and_their_metrics() -> None:
    """Sixty requests of two threads; the counters are those of the requests, histograms have a sample for each."""
    with serving() as port:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(
                lambda n: client(port).completions.create(model="toy", prompt=list(range(1, 3 + n % 20)), max_tokens=1 + n % 7),
                range(60),
            ))  # fmt: skip
        found = metrics(port)
        asked_, given = (
            sum(getattr(a.usage, name) for a in answers) for name in ("prompt_tokens", "completion_tokens")
        )
        assert found["vllm:prompt_tokens_total"] == asked_
        assert found["vllm:generation_tokens_total"] == given
        assert found["vllm:request_success_total{length}"] == 60
        assert found["vllm:time_to_first_token_seconds_count"] == 60
        assert found["vllm:inter_token_latency_seconds_count"] == given - 60
        assert found["vllm:iteration_tokens_total_sum"] == asked_ + given - 60
        whole = sum(a.model_extra["time_info"]["total_time"] for a in answers)
        assert found["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(whole)
        assert (found["vllm:num_requests_running"], found["vllm:kv_cache_usage_perc"]) == (0, 0)


def test_a_client_that_goes_frees_its_place() -> None:
    """In real time, a client leaves a stream of 10,000 tokens (over 3 s) after two: the request ends, and its memory is
    freed.
    """
    slow = Replica(TABLE, ServingRules(blocks=2000, turn_tokens=8))
    with serving(slow, time_scale=1.0) as port:
        stream = client(port).completions.create(model="toy", prompt="hello", max_tokens=10_000, stream=True)
        next(iter(stream))
        assert metrics(port)["vllm:num_requests_running"] == 1
        stream.close()
        raw = socket.create_connection(("127.0.0.1", port))  # a client that sends half a request and goes
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
        raw.close()
        body = json.dumps({"model": "toy", "prompt": "hi", "max_tokens": 9000}).encode()
        raw = socket.create_connection(("127.0.0.1", port))  # one that does not wait for its whole answer
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        time.sleep(0.2)
        raw.close()
        for _ in range(200):
            found = metrics(port)
            if found["vllm:request_success_total{abort}"] == 2 and not found["vllm:num_requests_running"]:
                break
            time.sleep(0.05)
        assert found["vllm:request_success_total{abort}"] == 2
        assert found["vllm:num_requests_running"] == 0
        assert found["vllm:kv_cache_usage_perc"] == 0
        assert (
            client(port).completions.create(model="toy", prompt="hello", max_tokens=2).usage.completion_tokens
            == 2
        )


@pytest.mark.slow
def test_a_full_queue_answers_429() -> None:
    """One runs and two may wait: of eight simultaneous requests at most five and at least one are refused, and all
    others are answered.
    """
    one = Replica(TABLE, ServingRules(blocks=2000, most_running=1, turn_tokens=8))
    with serving(one, time_scale=1.0, max_queue=2) as port, ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> int:
            try:
                client(port).completions.create(model="toy", prompt="hello", max_tokens=1500)
            except openai.RateLimitError as refused:
                refusals.append(refused)
                return 429
            return 200

        refusals: list[openai.RateLimitError] = []
        found = list(pool.map(ask, range(8)))
    assert all("--max-queue" in one.body["message"] for one in refusals)
    assert {one.response.headers["retry-after"] for one in refusals} == {"1"}
    assert found.count(200) >= 3
    assert found.count(429) >= 1


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"x" * 3000, 413, "longer than 2,000 bytes"),
        (b"[]", 400, "not a JSON object"),
        (b'{"prompt": ""}', 400, "prompt is neither"),
        (b'{"prompt": [1, "a", {}]}', 400, "prompt is neither"),
        (b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens 0 is invalid"),
        (b'{"prompt": "a", "max_tokens": true}', 400, "max_tokens True is invalid"),
        (b'{"prompt": "a", "n": 1000}', 400, "n 1000 is invalid"),
        (b'{"prompt": "a", "stream": "yes"}', 400, "stream 'yes' is neither"),
        (b'{"prompt": "a", "stream_options": 3}', 400, "stream_options is not an object"),
        (b'{"prompt": "a", "model": "b"}', 404, "model 'b' is not served here; use toy"),
        (b'{"prompt": "a", "model": 7}', 400, "model is not text"),
        (b'{"prompt": "a", "max_tokens": 4000}', 400, "exceed the cache of a replica (3,200 tokens)"),
        (b'{"prompt": "a", "max_tokens": 999999999}', 400, "exceed the context"),
        (b"\xff\xfe", 400, "not a JSON object"),
        (b"[" * 1900, 400, "not a JSON object"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_cannot_be_answered_is_one_sentence(body: bytes, status: int, said: str, limited: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{limited}/v1/completions", body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=WAITS_S)
    error = json.loads(refused.value.read())["error"]
    assert (refused.value.code, error["code"]) == (status, status)
    assert said in error["message"]


@pytest.fixture(scope="module")
def limited() -> Iterator[int]:
    with serving(max_body_bytes=2000) as found:
        yield found


def test_tokens_are_pieces_of_text() -> None:
    assert len(tokens_of("abcdefghi")) == 3
    assert tokens_of("abcdefghi")[:2] == tokens_of("abcdefgh")
    assert len(tokens_of(filler(5, 40))) == 40
    chat = asked({"messages": [{"role": "user", "content": "x" * 400}]}, is_chat=True)
    assert chat.output_tokens is None
    for odd in ([], [{"role": "user"}], [3], "text"):
        with pytest.raises(ServingError, match="; give"):
            asked({"messages": odd}, is_chat=True)


@pytest.mark.parametrize("text", ["", "x", "1.5", "70000", "127.0.0.1:", "-1", "nowhere.invalid:80"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ServingError, match=r"; (give|name)"):
        listening(text)


def test_loopback_is_the_default() -> None:
    assert address_of("8000") == ("127.0.0.1", 8000)
    assert address_of("[::1]:0") == ("::1", 0)
    with listening("0") as place:
        assert place.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ServingError, match="cannot be used"):
            listening(f"127.0.0.1:{place.getsockname()[1]}")


@pytest.mark.slow
def test_a_prefix_is_found_again() -> None:
    replica = Replica(TABLE, ServingRules(blocks=200, turn_tokens=8, prefix_cache=True))
    with serving(replica) as port:
        times = [
            client(port).completions.create(model="toy", prompt="a long beginning " * 20, max_tokens=1).model_extra["time_info"]
            for _ in range(2)
        ]  # fmt: skip
        found = metrics(port)
    assert times[1]["prompt_time"] < 0.5 * times[0]["prompt_time"]
    assert found["vllm:prefix_cache_queries_total"] == 2 * 85
    assert found["vllm:prefix_cache_hits_total"] == 80  # five blocks of sixteen
    assert np.isclose(times[0]["queue_time"], 0)


def test_metrics_are_there_without_a_redirection(port: int) -> None:
    """curl and some scrapers follow no redirection; the format is the requested one."""
    for path, accept, media in (
        ("/metrics", "*/*", "text/plain"), ("/metrics/", "", "text/plain"),
        ("/metrics", "application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAITS_S)
        connection.request("GET", path, headers={"accept": accept})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        assert reply.status == 200
        assert str(reply.getheader("content-type")).startswith(media)
        assert re.search(r"^vllm.num_requests_running\{", text, re.MULTILINE)
