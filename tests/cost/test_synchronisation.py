"""What ends a step: who sums how much, and what an optimizer's state costs where it is."""

import pytest
from msgspec import structs

from moeplan.cost.pricing import Pricing
from moeplan.cost.synchronisation import HOST_BYTES_PER_S, HOST_LINK_BYTES_PER_S, optimizer, shared
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.resources.memory import updated_parameters
from moeplan.spec.workload import Memory

LAYOUT = Colocated(pp=2, dp=8, ep=8)


@pytest.fixture
def pricing(make_case, machine_of):
    def made(memory=Memory(), **model):  # noqa: B008
        case = make_case(16, hidden=1024, expert_width=1024, memory=memory, **model)
        return Pricing(case, stages(case, LAYOUT), machine_of(case))

    return made


def test_state_on_the_host_passes_its_memory_and_the_link(pricing):
    """30 bytes of a parameter through the host's memory, gradient and weight (6) over the link."""
    here, there = (pricing(Memory(offload=share)) for share in (0.0, 1.0))
    held = max(updated_parameters(there.case, there.graph, p) for p in (0, 1))
    launch = there.machine.calibration.kernel_s
    assert optimizer(there).seconds == pytest.approx(
        held * (30 / HOST_BYTES_PER_S + 6 / HOST_LINK_BYTES_PER_S) + launch
    )
    assert optimizer(here).seconds < optimizer(there).seconds


def test_state_over_fewer_ranks_takes_longer(pricing):
    """Divided over 2 ranks instead of 8 copies of what is dense: more of it is updated by each."""
    all_, few = (optimizer(pricing(Memory(optimizer_shards=shards))).seconds for shards in (0, 2))
    assert few > all_


def test_modules_for_further_tokens_are_summed_too(pricing):
    plain, further = (pricing(Memory(mtp=trained), mtp_layers=1) for trained in (False, True))
    before, after = (sum(one.cost.seconds for one in shared(made)) for made in (plain, further))
    assert after > before
    assert optimizer(further).seconds > optimizer(plain).seconds


def test_weights_that_nobody_keeps_are_gathered_in_the_workloads_type(pricing):
    """FSDP of PyTorch: fp32 main weights are all there is, bf16 ones travel."""
    kept, none = (
        [
            one.cost.seconds
            for one in shared(pricing(structs.replace(Memory(), weight_bytes=w)))
            if one.kind == "all_gather"
        ]
        for w in (2.0, 0.0)
    )
    assert none == kept
