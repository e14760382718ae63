"""Host lists as Slurm writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.hostlist import compress, expand

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,6}[0-9]{0,4}(-ib)?", fullmatch=True)


def test_padding_is_kept():
    assert expand("node[01-04,07]", "x") == ("node01", "node02", "node03", "node04", "node07")
    assert expand("n[8-11]", "x") == ("n8", "n9", "n10", "n11")
    assert expand("n[08-11]", "x") == ("n08", "n09", "n10", "n11")
    assert expand("n[098-101]", "x") == ("n098", "n099", "n100", "n101")


def test_several_brackets_multiply_and_the_last_runs_fastest():
    hosts = expand("node[01-04,07],rack1-[1-2]n[001-128]", "x")
    assert len(hosts) == 5 + 2 * 128
    assert hosts[5:7] == ("rack1-1n001", "rack1-1n002")
    assert hosts[-1] == "rack1-2n128"


def test_text_after_a_bracket_belongs_to_the_name():
    assert expand("a[1-2]-ib,b", "x") == ("a1-ib", "a2-ib", "b")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("node[01-04", r"a '\[' that is not closed at character 5"),
        ("a,node[01-04", r"a '\[' that is not closed at character 7"),
        ("node01]", r"a '\]' that closes nothing at character 7"),
        ("n[1-[2]]", r"a '\[' inside brackets at character 5"),
        ("n[4-2]", r"the range '4-2' at character 3"),
        ("n[1,x]", r"'x' in brackets at character 5"),
        ("n[]", r"'' in brackets at character 3"),
        ("n[1,]", r"'' in brackets at character 5"),
        ("n[1-004]", r"the range '1-004' at character 3"),
        ("n[1--4]", r"'1--4' in brackets"),
        ("a,,b", "no name before the comma at character 3"),
        ("a,", "no name at the end at character 3"),
        (",a", "no name before the comma at character 1"),
        ("a b", "' ' at character 2"),
        ("n{1..4}", r"'\{' at character 2"),
        ("", "an empty host list"),
        ("n[0-99999999999]", "more than 1048576 hosts"),
        ("n[0-9999][0-9999]", "more than 1048576 hosts"),
        ("n[1-99999999999999999999]", "in brackets"),
    ],
)
def test_broken_lists_say_where(text, what):
    with pytest.raises(SpecError, match=what):
        expand(text, "here")


def test_short_forms():
    assert compress(["node01", "node02", "node03", "node07", "login"]) == "node[01-03,07],login"
    assert compress(["n9", "n10", "n11"]) == "n[9-11]"
    assert compress(["n09", "n10", "n011"]) == "n[09-10,011]"
    assert compress(["a1", "b1", "a2"]) == "a1,b1,a2"
    assert compress(["10.0.0.1", "10.0.0.2"]) == "10.0.0.[1-2]"


@given(st.lists(NAMES, min_size=1, max_size=20))
def test_any_hosts_come_back_in_their_order(hosts):
    assert expand(compress(hosts), "x") == tuple(hosts)


@given(st.integers(0, 2000), st.integers(1, 200), st.integers(1, 6))
def test_a_run_of_any_width_is_one_range(start, count, width):
    hosts = [f"n{number:0{width}d}" for number in range(start, start + count)]
    text = compress(hosts)
    assert expand(text, "x") == tuple(hosts)
    assert text.count("-") == (count > 1)


@given(st.text(alphabet="ab01,-[]. ", max_size=16))
def test_any_text_is_refused_or_read_to_names_that_come_back(text):
    try:
        hosts = expand(text, "x")
    except SpecError:
        return
    assert expand(compress(hosts), "x") == hosts
