"""TOML as text: what is read back is what was written."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from moeplan.toml_text import Noted, toml_text

TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30).map(lambda text: text.replace("\r", ""))
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_again(tables):
    assert tomllib.loads(toml_text(tables)) == tables


@given(TEXTS, TEXTS | st.lists(TEXTS, max_size=20))
def test_a_comment_changes_nothing_whatever_it_says(note, value):
    read = tomllib.loads(toml_text({"a": Noted(value, note), "b": {"c": Noted(value, note)}}))
    assert read == {"a": value, "b": {"c": value}}


def test_a_comment_stands_beside_its_value():
    assert toml_text({"nic": Noted("50 GB/s", "assumed: as\nothers")}) == 'nic = "50 GB/s"  # assumed: as others\n'


def test_tables_in_a_list_stand_in_a_line_each():
    rows = [{"name": f"leaf{i}", "nodes": "n" * 40} for i in range(3)]
    assert toml_text({"switches": rows}).splitlines()[1] == f'    {{name = "leaf0", nodes = "{"n" * 40}"}},'
