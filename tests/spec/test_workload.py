"""Bytes per parameter: parts that exceed the whole, and a division of what is whole, are refused."""

import pytest

from moeplan.errors import SpecError
from moeplan.spec.workload import Memory, check_memory


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bytes_per_parameter": 13}, r"bytes_per_parameter 13 is less than weight_bytes 2.0 \+ optimizer_bytes 12"),
        ({"main_bytes": 13}, "main_bytes 13 > optimizer_bytes 12.0, of which it is a part"),
        ({"optimizer_bytes": 2}, "main_bytes 4.0 > optimizer_bytes 2, of which it is a part"),
        ({"zero": 0, "optimizer_shards": 2}, "optimizer_shards 2 with zero 0, which divides nothing; it may be 0 or 1"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(fields, message):
    with pytest.raises(SpecError, match=f"^memory: {message}"):
        check_memory(Memory(**fields))


@pytest.mark.parametrize(
    "fields", [{}, {"main_bytes": 12}, {"optimizer_bytes": 0, "main_bytes": 0}, {"zero": 0, "optimizer_shards": 1}]
)
def test_parts_up_to_the_whole_are_taken(fields):
    assert check_memory(Memory(**fields)) == Memory(**fields)
