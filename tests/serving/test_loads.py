"""Requests that are drawn from distributions, and read from published files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.errors import WseError
from wse_sim.service.serving_run import load_for
from wse_sim.serving.base import TICK_S, Load, ServingError
from wse_sim.serving.options import ServingOptions
from wse_sim.serving.traces import FORMS, load_of
from wse_sim.serving.workload import drawn_load, lengths, shortened

COUNT = 40_000


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [("poisson", 1.0), ("gamma:1", 1.0), ("gamma:0.25", 2.0), ("gamma:4", 0.5), ("constant", 0.0)],
)
def test_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(arrivals: str, variation: float) -> None:
    """For a gamma distribution of shape B the coefficient of variation is 1 / sqrt(B)."""
    load = drawn_load(COUNT, rate=5.0, arrivals=arrivals, inputs="1", outputs="1")
    gaps = np.diff(load.arrival_ticks) * TICK_S
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05, abs=1e-6)


def test_a_ramp_begins_slow_and_ends_fast() -> None:
    load = drawn_load(COUNT, arrivals="ramp:1:9", inputs="1", outputs="1")
    gaps = np.diff(load.arrival_ticks) * TICK_S
    first, last = gaps[: COUNT // 20], gaps[-COUNT // 20 :]
    assert 1 / first.mean() == pytest.approx(1.2, rel=0.1)
    assert 1 / last.mean() == pytest.approx(8.8, rel=0.1)


@pytest.mark.parametrize(
    ("law", "mean", "deviation"),
    [
        ("700", 700, 0),
        ("fixed:3", 3, 0),
        ("uniform:10:30", 20, np.sqrt((21**2 - 1) / 12)),
        ("normal:500:50", 500, 50),
        ("lognormal:500:250", 500, 250),
    ],
)
def test_lengths_have_the_moments_of_their_law(law: str, mean: float, deviation: float) -> None:
    drawn = lengths(law, COUNT, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(deviation, rel=0.04)


def test_zipf_halves_as_its_exponent_says() -> None:
    """P(2) / P(1) = 2^-1.5, and no value exceeds the largest."""
    drawn = lengths("zipf:1.5:50", COUNT, np.random.default_rng(1))
    assert drawn.min() == 1
    assert drawn.max() <= 50
    assert (drawn == 2).sum() / (drawn == 1).sum() == pytest.approx(2**-1.5, rel=0.05)


def test_more_requests_leave_the_first_ones_and_another_rate_their_order() -> None:
    short, long = (
        drawn_load(n, rate=3.0, inputs="lognormal:90:90", outputs="uniform:1:9") for n in (50, 500)
    )
    for name in ("arrival_ticks", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(short, name), getattr(long, name)[:50])
    fast = drawn_load(50, rate=6.0, inputs="lognormal:90:90", outputs="uniform:1:9")
    np.testing.assert_allclose(fast.arrival_ticks, short.arrival_ticks / 2, atol=1)


def test_a_user_sends_after_the_last_answer() -> None:
    load = drawn_load(7, arrivals="users:3:2.5", inputs="5", outputs="5")
    assert load.after.tolist() == [-1, -1, -1, 0, 1, 2, 3]
    first = load.arrival_ticks[:3] * TICK_S
    assert 0 <= first[0] < first[1] < first[2] < 2.5
    assert (load.think_ticks * TICK_S).tolist() == [0, 0, 0, 2.5, 2.5, 2.5, 2.5]


@pytest.mark.parametrize(
    "asked",
    [
        {"arrivals": "gamma"}, {"arrivals": "gamma:0"}, {"arrivals": "users:0"}, {"arrivals": "users:١"},
        {"arrivals": "storm"}, {"rate": 0.0}, {"inputs": "uniform:9:3"}, {"inputs": "lognormal:5"}, {"inputs": "1_0"},
        {"outputs": "nan"}, {"outputs": "normal:1e9:1"}, {"requests": 0}, {"inputs": "-3"}, {"inputs": ""},
    ],
    ids=str,
)  # fmt: skip
def test_laws_that_are_none_are_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ServingError, match=r"; (give|use) "):
        drawn_load(**{"requests": 5, "inputs": "5", "outputs": "5", **asked})  # type: ignore[arg-type]


TRACES = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    ),
    "mooncake": (
        '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [0, 1]}\n'
        '{"timestamp": 4314.579, "input_length": 396, "output_length": 109, "hash_ids": [0]}\n'
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,Conversation log\n"
        "7,ChatGPT,5,0,5,Conversation log\n9.314579,GPT-4,396,109,505,API log\n"
    ),
    "llmservingsim": (
        '{"input_toks": 374, "output_toks": 44, "arrival_time_ns": 1000000000}\n'
        '{"input_toks": 396, "output_toks": 109, "arrival_time_ns": 5314579000}\n'
    ),
    "bailian": (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 374, "output_length": 44, "type": "text"}\n'
        '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 65.314579, "input_length": 396, "output_length": 109}\n'
    ),
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
}  # the first two rows of one trace, in every form


@pytest.mark.parametrize("form", TRACES)
def test_a_trace_reads_as_it_is_published(tmp_path: Path, form: str) -> None:
    file = tmp_path / "trace"
    file.write_text(TRACES[form])
    load = load_of(f"{form}:{file}")
    assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([374, 396], [44, 109])
    np.testing.assert_allclose(load.arrival_ticks * TICK_S, [0.0, 4.314579], atol=1e-6)
    assert len(load.notes) == (form == "burstgpt")
    np.testing.assert_allclose(
        load_of(f"{form}:{file}", scale_rate=2).arrival_ticks, load.arrival_ticks / 2, atol=1
    )
    assert len(load_of(f"{form}:{file}", limit=1)) == 1


NAMED = {
    "arrival_timestamp,prompt_size,token_size": "id,arrival_timestamp,batch,prompt_size,token_size\n0,1,1,374,44\n1,5.314579,1,396,109\n",
    "at@ms,ask,say": '{"at": 7, "ask": 374, "say": 44, "x": 1}\n{"at": 4321.579, "ask": 396, "say": 109}\n',
    "StartTimeOffset@ns,In,Out": '{"In": 374, "Out": 44, "StartTimeOffset": 0}\n{"In": 396, "Out": 109, "StartTimeOffset": 4314579000}\n',
    "timestamp@us,Prompt Length,Output Length": '{"timestamp": 0, "requests": [{"Prompt Length": 374, "Output Length": 44, "prompt": "x"}]}\n'
    '{"timestamp": 4314579, "requests": [{"Prompt Length": 396, "Output Length": 109, "prompt": "y"}]}\n',
    "when,text,n": f"when,text,n\n2024-05-10 00:00:00.009930+00:00,{'a' * 1499},44\n2024-05-10 00:00:04.324509+00:00,{'b' * 1584},109\n",
}  # fmt: skip
"""The same two requests as others name them: CSV, JSON lines with units, a list in a line, a date and a text."""


@pytest.mark.parametrize("names", NAMED)
def test_a_trace_of_no_known_form_is_read_by_the_names_of_its_fields(tmp_path: Path, names: str) -> None:
    file = tmp_path / "trace"
    file.write_text(NAMED[names])
    load = load_of(f"fields:{names}:{file}")
    assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([374, 396], [44, 109])
    np.testing.assert_allclose(load.arrival_ticks * TICK_S, [0.0, 4.314579], atol=1e-6)


def test_a_line_may_hold_several_requests_and_no_time(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(
        '{"n": 5, "requests": [{"m": 1}, {"m": 2, "n": 6}], "tags": [1]}\n{"n": 7, "m": 3, "requests": []}\n'
    )
    options = ServingOptions(workload=f"fields:,n,m:{file}", rate=2.0, arrivals="constant")
    load = load_for(options)
    assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([5, 6, 7], [1, 2, 3])
    assert (load.arrival_ticks * TICK_S).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("names", "text", "says"), [
    ("a,b", "", "fields 'a,b' are not three"), ("a,,c", "", "are not three"), ("a@h,b,c", "a,b,c\n1,2,3\n", "unit 'h' of field 'a'"),
    ("a,b,d", "a,b,c\n1,2,3\n", "no column 'd'"), ("a,b,c", "a,b,c\n1,2,3\n2,x,3\n", "line 3 has b 'x'; give an integer"),
    ("a,b,c", '{"a": 1, "b": "some text", "c": 1}\n{"a": 1, "b": 5, "c": 1}', "line 2 has b '5'; give a text"),
    ("a,b,c", '{"a": 1, "b": 5}\n', "line 1 has c 'None'"),
])  # fmt: skip
def test_fields_that_are_not_there_are_sentences(tmp_path: Path, names: str, text: str, says: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(WseError, match=says):
        load_of(f"fields:{names}:{file}")


def test_calls_of_a_session_come_after_answers_and_tools(tmp_path: Path) -> None:
    """Two sessions that begin at 2 s and 1 s, of two calls and one: the second call comes 3 s after the first answer."""
    file = tmp_path / "sessions.jsonl"
    calls = '[{"input_toks": 7, "output_toks": 2, "tool_duration_ns": 3000000000}, {"input_toks": 12, "output_toks": 4}]'
    file.write_text(
        '{"session_id": "a", "arrival_time_ns": 2000000000, "sub_requests": ' + calls + "}\n"
        '{"input_toks": 5, "output_toks": 1, "arrival_time_ns": 1000000000}\n'
    )
    load = load_of(f"llmservingsim:{file}")
    assert load.input_tokens.tolist() == [5, 7, 12]
    assert load.after.tolist() == [-1, -1, 1]
    assert (load.arrival_ticks[:2] * TICK_S).tolist() == [0.0, 1.0]
    assert load.think_ticks[2] * TICK_S == 3.0
    file.write_text('{"arrival_time_ns": 2, "sub_requests": []}\n')
    with pytest.raises(WseError, match="give a list of objects"):
        load_of(f"llmservingsim:{file}")


def test_files_without_times_come_as_a_law_says(tmp_path: Path) -> None:
    """The load has the arrivals of drawn requests and the lengths of the file."""
    file = tmp_path / "lengths.csv"
    file.write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n" + "74,918,0.08\n9,3,3.0\n" * 20)
    options = ServingOptions(workload=f"lengths:{file}", rate=2.0, seed=5)
    load, drawn = load_for(options), drawn_load(40, rate=2.0, inputs="9", outputs="9", seed=5)
    np.testing.assert_array_equal(load.arrival_ticks, drawn.arrival_ticks)
    assert (load.input_tokens[:2].tolist(), load.output_tokens[:2].tolist()) == ([74, 9], [918, 3])
    assert load_for(options.replace(arrivals="users:3")).after[:5].tolist() == [-1, -1, -1, 0, 1]
    assert not load_for(options.replace(rate=None)).arrival_ticks.any()


def test_lengths_of_conversations_are_their_characters_by_four(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    turns = '[{"from": "human", "value": "%s"}, {"from": "gpt", "value": "%s"}, {"from": "human", "value": "more"}]'
    one = '{"conversations": ' + turns % ("x" * 40, "y" * 12) + "}"
    for text, count in ((f"[{one}]", 1), (f"{one}\n{one}\n", 2)):  # a list, or a line each
        file.write_text(text)
        load = load_of(f"sharegpt:{file}")
        assert (load.input_tokens.tolist(), load.output_tokens.tolist()) == ([10] * count, [3] * count)


DAMAGED = TRACES | {f"fields:{names}": text for names, text in NAMED.items()}


@examples(60)
@given(st.sampled_from(sorted(DAMAGED)), st.data())
def test_a_damaged_trace_is_a_sentence_or_a_load(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    """A change anywhere is read, or refused with the file; there is never a traceback or a request without tokens."""
    text = DAMAGED[form]
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(["", "-", "x", "\n", "1e9", "٣", "\x00", '"', "nan", "9" * 400, "0.5"]))
    file = tmp_path_factory.getbasetemp() / f"damaged-{form.partition(':')[0]}"
    file.write_text(text[:at] + put + text[at + data.draw(st.integers(0, 3)) :])
    said, load = "", None
    try:
        load = load_of(f"{form}:{file}")
    except WseError as fault:
        said = str(fault)
    if load is None:
        assert str(file) in said
        assert "; " in said or said.endswith("?")
    else:
        assert load.input_tokens.min() >= 1
        assert (np.diff(load.arrival_ticks) >= 0).all()


@pytest.mark.parametrize(
    "named", ["azure", "azure:", "parquet:x", ":x", *(f"{form}:/nowhere" for form in FORMS)]
)
def test_workloads_that_are_not_there_are_refused(named: str) -> None:
    with pytest.raises(WseError, match=";"):
        load_of(named)


@pytest.mark.parametrize(("stamp", "count", "says"), [
    ("2023-11-16 18:15:46.1_0", "3", "give a date"), ("2023-11-16 18:15:46.1e999", "3", "give a date"),
    ("9999-12-31 00:00:00.5", "3", "TIMESTAMP"), ("2023-11-16 18:15:46.5", "4" * 200_000, "not a line of CSV"),
])  # fmt: skip
def test_rows_that_no_service_writes(tmp_path, stamp, count, says):
    """Python reads 0.1_0 and 0.1e999 as fractions of a second, and stops at fields of 131,072 characters."""
    file = tmp_path / "trace.csv"
    file.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamp},{count},4\n")
    with pytest.raises(WseError, match=says):
        load_of(f"azure:{file}")


def test_who_follows_one_that_fails_follows_the_one_before_it() -> None:
    """There are two users; the second request of the first one, and the next two of the second, are too long."""
    after = np.array([-1, -1, 0, 1, 2, 3, 4, 5])
    sizes, rows = np.array([3, 3, 99, 99, 3, 99, 3, 3]), np.zeros(8, np.int64)
    load = shortened(Load(rows, sizes, rows + 1, after, rows), 50)
    assert load.refused == 3
    assert load.input_tokens.tolist() == [3] * 5
    assert load.after.tolist() == [-1, -1, 0, 2, 1]
