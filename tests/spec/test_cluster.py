"""What a cluster file may say, and the first GPUs of a cluster."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.spec.cluster import (
    ClusterSpec,
    Dragonfly,
    check_cluster,
    first_gpus,
    node_of,
    num_ranks,
    single_hop_nodes,
    sized,
)
from moeplan.spec.record import convert, to_plain
from moeplan.spec.shipped import load_cluster
from moeplan.units import BytesPerS

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


FRONTIER = load_cluster("frontier")


def linked(*pairs: tuple[int, int], gpus: int = 4) -> ClusterSpec:
    links = tuple((a, b, BytesPerS(50e9)) for a, b in pairs)
    return msgspec.structs.replace(FRONTIER, node=msgspec.structs.replace(FRONTIER.node, gpus=gpus, links=links))


def test_nodes_of_one_leaf_or_one_switch_are_one_hop_apart() -> None:
    assert single_hop_nodes(H800) == 16
    assert single_hop_nodes(FRONTIER) == 4  # Piper (arXiv 2605.05049): N_h
    assert single_hop_nodes(msgspec.structs.replace(FRONTIER, nodes=1)) == 4


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (1, 2), (2, 4)], r"\[2, 4, '50000000000 B/s'\]; the node's GPUs are 0 to 3"),
        ([(0, 1), (1, 1)], r"\[1, 1, .*two different GPUs"),
        ([(0, 1), (1, 2), (1, 0)], r"\[1, 0, .*a pair given before"),
        ([(0, 1), (2, 3)], "do not join GPU 2 to GPU 0; join all 4 GPUs"),
        ([(1, 2), (2, 3)], "do not join GPU 1 to GPU 0"),
        ([(0, 1), (1, 2)], "do not join GPU 3 to GPU 0"),
    ],
)
def test_links_that_do_not_join_the_gpus_are_refused(pairs: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        check_cluster(linked(*pairs))
    assert "\n" not in str(error.value)


def test_a_link_without_bandwidth_is_refused() -> None:
    node = msgspec.structs.replace(FRONTIER.node, gpus=2, links=((0, 1, BytesPerS(0)),))
    with pytest.raises(SpecError, match="bandwidth is more than 0"):
        check_cluster(msgspec.structs.replace(FRONTIER, node=node))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('[0, 1, "200 GB/s"]', '[0, 8, "200 GB/s"]', "GPUs are 0 to 7"),
        ('[0, 1, "200 GB/s"]', '[-1, 1, "200 GB/s"]', r"Expected `int` >= 0 - at `\$.node.links\[0\]\[0\]`"),
        ('[0, 1, "200 GB/s"]', "[0, 1, 200]", "200 needs a unit"),
        ('[0, 1, "200 GB/s"]', "[0, 1]", r"at `\$.node.links\[0\]`"),
        ("switches_per_group = 32", "switches_per_group = 1", "Expected `int` >= 2"),
        ('global_link = "25 GB/s"', "", "missing required field `global_link`"),
        ('kind = "dragonfly"', 'kind = "tree"', r"unknown field|missing required field"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (Path(__file__).parents[2] / "topologies" / "frontier.toml").read_text()
    assert old in text
    (tmp_path / "wrong.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        load_cluster(str(tmp_path / "wrong.toml"))


@pytest.mark.parametrize("cluster", [H800, FRONTIER, load_cluster("dgx-h100")])
def test_a_cluster_survives_its_own_file(cluster: ClusterSpec) -> None:
    assert convert(to_plain(cluster), ClusterSpec, where="test") == cluster


@pytest.mark.parametrize("count", range(1, 8))
def test_part_of_a_linked_node_keeps_the_links_between_its_gpus(count: int) -> None:
    part = first_gpus(FRONTIER, count)
    assert set(part.node.links) == {link for link in FRONTIER.node.links if max(link[:2]) < count}
    assert check_cluster(part) == part
    assert (part.nodes, part.node.gpus, part.node.nics) == (1, count, -(-count // 2))


@pytest.mark.parametrize(
    ("pairs", "count", "lost"), [([(0, 3), (3, 1), (1, 2)], 2, 1), ([(0, 1), (1, 3), (3, 2)], 3, 2)]
)
def test_part_of_a_linked_node_that_falls_apart_is_refused(pairs: list[tuple[int, int]], count: int, lost: int) -> None:
    with pytest.raises(SpecError, match=f"do not join GPU {lost} to GPU 0 among the first {count} GPUs"):
        first_gpus(linked(*pairs), count)


def test_frontier_has_what_its_sources_print() -> None:
    node, network = FRONTIER.node, FRONTIER.network
    assert num_ranks(FRONTIER) == 75264
    assert node.nics * node.nic_bytes_per_s == 100e9
    assert sum(bandwidth for *_, bandwidth in node.links) == (4 * 200 + 2 * 100 + 6 * 50) * 1e9
    assert isinstance(network, Dragonfly)
    assert network.nodes_per_switch * network.switches_per_group == 128
    assert FRONTIER.sources


def test_dgx_has_what_its_sources_print() -> None:
    dgx = load_cluster("dgx-h100")
    assert num_ranks(dgx) == 2048
    assert dgx.node.nics * dgx.node.nic_bytes_per_s == 400e9
    assert 2 * dgx.node.link_bytes_per_s == 900e9
    assert dgx.sources


def test_a_machine_of_named_nodes_is_not_made_larger() -> None:
    named = msgspec.structs.replace(H800, hosts="n[0-15]", node=msgspec.structs.replace(H800.node, domain=2))
    assert sized(named, 64) == first_gpus(named, 64)
    with pytest.raises(SpecError, match="256 GPUs asked for, of 128"):
        sized(named, 256)
