"""Which NIC each GPU sends through."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.errors import SpecError
from moeplan.importers import read
from moeplan.importers.assign import assign
from moeplan.importers.found import FoundNic, FoundNode


def node(near, nics):
    gpus = len(near)
    ports = tuple(FoundNic(f"nic{j}", 0.0, -1) for j in range(nics))
    return FoundNode(gpus, "", ports, tuple(map(tuple, near)), (), False, (-1,) * gpus, ("",) * gpus)


@st.composite
def nodes(draw):
    nics = draw(st.integers(1, 4))
    near = st.sets(st.integers(0, nics - 1), min_size=1).map(sorted)
    return node(draw(st.lists(near, min_size=1, max_size=6)), nics)


def test_ties_are_spread_so_that_each_nic_serves_one_gpu():
    """Taking the first of two equally near NICs gives one twice the load: NVIDIA/nccl issue 820."""
    near = [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]
    assert assign(node(near, 8)).nic_of_gpu == (0, 1, 2, 3, 4, 5, 6, 7)


def test_a_gpu_gives_way_to_one_without_choice():
    assert assign(node([[0, 1], [0]], 2)).nic_of_gpu == (1, 0)
    assert assign(node([[0, 1], [0, 2], [0]], 3)).nic_of_gpu == (1, 2, 0)


def test_its_own_nic_is_each_gpus(fixture):
    assigned = assign(read(fixture("smi.txt")).node)
    assert assigned == ((0, 1, 2, 3), ((0,), (1,), (2,), (3,)), (), ())


@pytest.mark.parametrize(("gpus", "nics"), [(8, 8), (8, 4), (8, 2), (8, 1), (4, 6), (4, 3), (8, 3)])
def test_equal_distances_give_index_order(gpus, nics):
    assigned = assign(node([range(nics)] * gpus, nics))
    assert list(assigned.nic_of_gpu) == sorted(assigned.nic_of_gpu)
    assert len(set(assigned.nic_of_gpu)) == min(gpus, nics)
    assert any("index order" in note for note in assigned.notes) == (nics > 1)
    if nics <= gpus and gpus % nics == 0:
        assert assigned.nic_of_gpu == tuple(gpu * nics // gpus for gpu in range(gpus))


def test_a_file_of_nccl_decides_where_a_virtual_machine_hides_distances(fixture):
    """All NICs seemed equally far in a virtual machine: NVIDIA/nccl issue 1464."""
    hidden = node([range(4)] * 4, 4)
    crossed = read(fixture("nccl_cloud.xml")).node._replace(nic_of_gpu=((1,), (0,), (3,), (2,)))
    assigned = assign(hidden, crossed)
    assert assigned.nic_of_gpu == (1, 0, 3, 2)
    assert not any("index order" in note for note in assigned.notes)
    assert any(note.startswith("assumed: GPU i and NIC i") for note in assigned.notes)
    with pytest.raises(SpecError, match="has 4 GPUs and 4 NICs, the node 8 GPUs and 8 NICs"):
        assign(node([range(8)] * 8, 8), crossed)


def test_both_ports_of_an_adapter_serve_its_gpu(fixture):
    assigned = assign(read(fixture("nccl_dump.xml")).node)
    assert assigned.nic_of_gpu == (6, 4, 2, 0)
    assert assigned.nics_of_gpu == ((6, 7), (4, 5), (2, 3), (0, 1))
    assert assigned.spare == ()


def test_nics_that_serve_no_gpu_are_named():
    """Two NICs for storage beside one for each GPU."""
    assigned = assign(node([[0], [1], [3], [4]], 6))
    assert assigned.nics_of_gpu == ((0,), (1,), (3,), (4,))
    assert assigned.spare == (2, 5)
    assert "2 NICs serve no GPU: nic2, nic5" in assigned.notes
    assert assign(node([range(6)] * 4, 6)).spare == (4, 5)


def test_a_node_without_nics_has_none(fixture):
    assert assign(read(fixture("rocm.txt")).node) == ((), (), (), ())


@given(nodes())
def test_loads_are_as_even_as_any_choice_allows(one):
    def cost(choice):
        loads = sorted((choice.count(nic) for nic in range(len(one.nics))), reverse=True)
        return sum(load * load for load in loads), choice

    every = list(product(*(sorted(near) for near in one.nic_of_gpu)))
    best = min(every, key=cost)
    chosen = assign(one).nic_of_gpu
    assert chosen == best
    loads = [chosen.count(nic) for nic in range(len(one.nics))]
    assert max(loads) == min(max(choice.count(nic) for nic in range(len(one.nics))) for choice in every)
