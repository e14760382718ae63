"""Option tables for the tests of the allocation, and its answer by trying every choice."""

import random
from itertools import product

from moeplan.optimize.options import Budgets, NicOption, OptionTable, SideOption

GIB = 2**30
NIC = 50e9


def option(gpus, seconds, *, nics=64, gib=1.0, name=None):
    return SideOption(name or f"{gpus} none", gpus, nics=nics, recompute="none", seconds=seconds, hbm_bytes=gib * GIB)


def roofline(attention, ffn, volume, gpus, nics):
    """All splits of GPUs and NICs, with seconds C / (gpus P) and V / (nics B) and no limit of memory or reach."""
    sides = [tuple(option(n, work / n) for n in range(1, gpus)) for work in (attention, ffn)]
    pairs = tuple(NicOption(a, f) for a in range(1, nics) for f in range(1, nics - a + 1))
    return OptionTable(*sides, pairs, volume, NIC), Budgets(gpus, nics, hbm_bytes=80 * GIB)


def drawn(seed):
    """A small table with every kind of limit, many ties, and sometimes no network or no solution."""
    draw = random.Random(seed)
    nics = draw.randint(2, 8)

    def side():
        count = draw.randint(1, 6)
        return tuple(
            option(draw.randint(1, 8), draw.choice([1.0, 2.0, 3.0, 4.5, draw.uniform(1, 5)]), nics=draw.randint(1, 6),
                   gib=draw.choice([40.0, 79.9, 80.0, 80.0 + 1 / GIB, 95.0]), name=f"option {i}")
            for i in range(count)
        )  # fmt: skip

    pairs = tuple(NicOption(draw.randint(1, 5), draw.randint(1, 5)) for _ in range(draw.choice([0, 2, 4, 8])))
    table = OptionTable(side(), side(), pairs, draw.choice([0.0, 2.0, 5.0, 12.0]) * NIC, NIC)
    return table, Budgets(draw.randint(6, 14), nics, hbm_bytes=80 * GIB)


def brute_force(table, budgets):
    """(seconds, attention, ffn, nics) of the best choice, or None where no choice fits."""
    pairs = table.nics if table.volume_bytes and table.nics else (None,)
    every = product(enumerate(table.attention), enumerate(table.ffn), enumerate(pairs))
    fitting = [choice for choice in every if _fits(*(one for _, one in choice), budgets)]
    timed = [(_seconds(table, *(one for _, one in choice)), choice) for choice in fitting]
    if not timed:
        return None
    fastest = min(seconds for seconds, _ in timed)
    seconds, choice = min((t for t in timed if t[0] <= fastest * (1 + 1e-9)), key=lambda timed: _preference(*timed[1]))
    return seconds, *(one for _, one in choice)


def _fits(attention, ffn, pair, budgets):
    return (
        attention.gpus + ffn.gpus <= budgets.gpus
        and max(attention.hbm_bytes, ffn.hbm_bytes) <= budgets.hbm_bytes
        and (
            pair is None
            or (
                pair.attention + pair.ffn <= budgets.nics
                and pair.attention <= attention.nics
                and pair.ffn <= ffn.nics
            )
        )
    )


def _seconds(table, attention, ffn, pair):
    network = table.volume_bytes / NIC / min(pair.attention, pair.ffn) if pair else 0.0
    return max(attention.seconds, ffn.seconds, network)


def _preference(attention, ffn, pair):
    (i, a), (j, f), (k, p) = attention, ffn, pair
    return a.gpus + f.gpus, a.gpus, abs(p.attention - p.ffn) if p else 0, i, j, k
