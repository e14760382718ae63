"""Chrome traces: equal after a round trip, readable by Perfetto, refused where they are not ours."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.simulate import read_chrome, run, timeline_to_trace, write_chrome
from moeplan.trace import Span, Trace

SPANS = st.builds(
    lambda op, name, lane, stream, start, length: Span(
        op=op, name=name, lane=lane, stream=stream, start_ns=start, end_ns=start + length
    ),
    st.integers(0, 10**6),
    st.text(max_size=8),
    st.integers(0, 2),
    st.sampled_from(["forward", "send m2n.F 1", 'q"\\']),
    st.integers(0, 10**15),
    st.integers(0, 10**12),
)


@pytest.fixture
def trace(programs):
    program = programs.program("interleaved", 2, 4, 4)
    return timeline_to_trace(program, programs.chain(2, 4), run(program, programs.unit_times(program, transfer=1)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("chrome") / "trace.json"


@given(spans=st.lists(SPANS, max_size=8), kind=st.sampled_from(["simulated", "measured"]))
def test_a_trace_read_back_is_equal(path, spans, kind):
    trace = Trace(kind=kind, lanes=("A0", "F0", ""), spans=tuple(spans))
    write_chrome(trace, path)
    assert read_chrome(path) == trace


def test_slices_have_what_perfetto_needs(trace, tmp_path):
    write_chrome(trace, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(trace.spans)
    for event, span in zip(slices, trace.spans, strict=True):
        assert event["ts"] == span.start_ns / 1000
        assert event["dur"] == (span.end_ns - span.start_ns) / 1000
        assert event["pid"] == span.lane
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [named[(e["pid"], e["tid"])] for e in slices] == [span.stream for span in trace.spans]
    lanes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert lanes == list(trace.lanes)


def test_equal_traces_give_equal_bytes(trace, tmp_path):
    for name in "ab":
        write_chrome(trace, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def spoil(document, change):
    first = next(event for event in document["traceEvents"] if event["ph"] == "X")
    change(document, first)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, e: d.pop("traceEvents"), "traceEvents"),
        (lambda d, e: d.update(traceEvents=3), "array"),
        (lambda d, e: d["otherData"].update(schema="other"), "other"),
        (lambda d, e: e.update(ph="Q"), "Q"),
        (lambda d, e: e["args"].pop("op"), "op"),
        (lambda d, e: e["args"].update(start_ns=1.5), "start_ns"),
        (lambda d, e: e["args"].update(start_ns=10**9), "before 1000000000 ns"),
        (lambda d, e: e.update(pid=7), "process 7, thread 0 has no name"),
        (lambda d, e: e.update(tid=99), "thread 99 has no name"),
        (lambda d, e: d["traceEvents"].insert(0, d["traceEvents"][0]), r"processes \[0, 0, 1\] are not"),
        (lambda d, e: d["traceEvents"].pop(0), "are not named 0..0 in order"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name(trace, tmp_path, change, message):
    path = tmp_path / "t.json"
    write_chrome(trace, path)
    path.write_text(spoil(json.loads(path.read_text()), change))
    with pytest.raises(SpecError, match=r"t\.json: .*" + message):
        read_chrome(path)


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"\xff\xfe", b"[]", b'"x"'])
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"t\.json"):
        read_chrome(path)


def test_a_missing_folder_is_an_error_of_the_user(trace, tmp_path):
    with pytest.raises(SpecError, match="is not a folder that can be written to"):
        write_chrome(trace, tmp_path / "none" / "t.json")
