"""What Piper says of networks: formulas and the graph agree; what rests on an assumed factor does not count."""

import numpy as np
import pytest

from moeplan.spec.shipped import load_calibration
from moeplan.validation.papers import SIZES, gain_facts, gain_rows, gains, piper_facts


@pytest.fixture(scope="module")
def facts():
    return {fact.what: fact for fact in piper_facts()}


def test_formulas_graph_and_times_agree(facts):
    assert [what for what, fact in facts.items() if not fact.reached] == []
    assert all(fact.counts for fact in facts.values())
    assert len(facts) >= 18


@pytest.mark.parametrize(
    ("what", "told", "within"),
    [
        ("all-to-all bound, d 5120, k 2, ms", 13.4, 0.005),
        ("all-to-all bound, d 7168, k 8, ms", 75.2, 0.005),
        ("55.2B on 32 GPUs, EP 32, static GB: does not fit", 75, 0.02),
        ("blocking of a group", 1.753, 1e-3),
        ("taper of a group, %", 57.0, 1e-3),
        ("from group to group, GB/s", 100, 1e-9),
        ("pairs of GCDs that are linked", 12, 1e-9),
        ("all-to-all of a node over shortest paths, GB/s per GCD", 87.5, 0.01),
        ("all-to-all of a node over all paths, GB/s per GCD", 131, 0.01),
    ],
)
def test_a_number_is_found_within_its_tolerance(facts, what, told, within):
    assert facts[what].found == pytest.approx(told, rel=within)


def test_gains_of_halo_are_those_reported_for_any_size_and_grow_with_the_nodes():
    """At the calibration's factor every gain is between 1.1 and 10, as printed 1.1 to 9; else less.

    They grow up to 256 nodes, and of small messages up to 512, where larger ones fill the links between four groups.
    """
    factor = load_calibration("mi250x").network.contention
    assert factor > 1
    for contention, least in ((1.0, 0.9), (factor, 1.1)):
        found = gains(load_calibration("mi250x"), contention)
        reported = {fact.what.partition(", contention")[0]: fact for fact in gain_facts(found)}
        assert not any(fact.counts for fact in reported.values())
        assert reported["least gain"].found >= least
        assert reported["largest gain"].found <= 10
        assert not reported["least growth of a gain with the nodes"].reached
        best = np.array([np.maximum(gain.plain, gain.chunked) for gain in found])
        assert (np.diff(best[:-1], axis=0) > -0.01).all()
        assert (np.diff(best[:, :2], axis=0) > 0).all()
        assert len(gain_rows(found)[0]) == 2 + len(SIZES)
