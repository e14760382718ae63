"""The first GPUs of a cluster."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, first_gpus, node_of, num_ranks
from moeplan.spec.shipped import load_cluster

H800 = load_cluster("h800-16x8")


def with_nics(nics: int) -> ClusterSpec:
    return msgspec.structs.replace(H800, node=msgspec.structs.replace(H800.node, nics=nics))


@given(st.integers(1, 16))
def test_whole_nodes(nodes: int) -> None:
    part = first_gpus(H800, 8 * nodes)
    assert part == msgspec.structs.replace(H800, nodes=nodes)
    assert node_of(part, num_ranks(part) - 1) == nodes - 1


@pytest.mark.parametrize(("count", "nics", "left"), [(4, 8, 4), (1, 8, 1), (3, 4, 2), (5, 4, 3), (7, 1, 1), (4, 0, 0)])
def test_part_of_a_node_keeps_the_nics_it_used(count: int, nics: int, left: int) -> None:
    part = first_gpus(with_nics(nics), count)
    assert (part.nodes, part.node.gpus, part.node.nics) == (1, count, left)
    assert part.node.nics == len({gpu * nics // 8 for gpu in range(count)} if nics else ())


@pytest.mark.parametrize("count", [12, 129, 136, 0, -8, 9])
def test_refused_with_both_numbers(count: int) -> None:
    other = "8" if 1 <= count <= 128 else "128"
    with pytest.raises(SpecError, match=rf"{count} GPUs.* {other}"):
        first_gpus(H800, count)
