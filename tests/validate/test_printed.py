"""What sources mean by peak memory."""

import pytest
from msgspec import structs

from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.resources.memory import beside, state_bytes
from moeplan.resources.parameters import embedding_parameters
from moeplan.spec.case import Case
from moeplan.spec.shipped import load_model
from moeplan.spec.workload import Memory, Workload
from moeplan.validation.printed import counts_told, printed_bytes

PEAK = 50e9


@pytest.fixture
def case(names):
    model = structs.replace(load_model("mixtral-8x7b"), num_layers=4)
    workload = Workload(seq_len=512, global_batch=8)
    return Case(model=model, cluster=names.part("dgx-h100", 8), workload=workload, memory=Memory(zero=0))


def test_each_way_of_counting_adds_what_it_names(case):
    graph = stages(case, Colocated(pp=2, ep=4, dp=4))
    more = beside(case, graph, 0, PEAK)
    told = [printed_bytes(case, graph, 0, PEAK, counts) for counts in ("allocated", "reserved", "device")]
    assert told == pytest.approx([PEAK, PEAK + more.reserve, PEAK + sum(more)])
    assert min(more) > 0


def test_parts_leave_out_the_embedding_and_workspaces(case):
    """18 bytes per parameter without ZeRO; the other stage has no embedding."""
    graph = stages(case, Colocated(pp=2, ep=4, dp=4))
    first, last = (PEAK - printed_bytes(case, graph, position, PEAK, "parts") for position in (0, 1))
    spaces = [state_bytes(case, graph, position).workspaces for position in (0, 1)]
    assert first - spaces[0] == pytest.approx(18 * embedding_parameters(case.model), rel=1e-3)
    assert last == pytest.approx(spaces[1])


@pytest.mark.parametrize(
    ("notes", "counts"),
    [
        ("", "allocated"),
        ("max_memory_allocated, GiB", "allocated"),
        ("reserved by the allocator", "reserved"),
        ("as nvidia-smi shows it", "device"),
        ("rocm-smi; GiB", "device"),
    ],
)
def test_notes_say_what_a_peak_is(notes, counts):
    assert counts_told(notes) == counts
