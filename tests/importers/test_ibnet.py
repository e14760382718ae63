"""An InfiniBand fabric as ibnetdiscover prints it."""

import pytest

from moeplan.errors import SpecError
from moeplan.importers import read, read_text


def test_a_fabric_is_read_whole(fixture):
    found = read(fixture("ibnet.out"))
    assert found.format == "ibnetdiscover"
    assert found.hosts == ("pod1-n1", "pod1-n2", "pod1-n3", "pod1-n4")
    leaf_a, leaf_b, spine = found.switches
    assert (leaf_a.name, leaf_a.hosts, leaf_a.level) == ("row1-leaf-a", ("pod1-n1", "pod1-n2"), 0)
    assert leaf_a.up == (("row1-spine", 400e9 / 8, 2),)
    assert leaf_b.up == (("row1-spine", 400e9 / 8, 1), ("row1-spine", 200e9 / 8, 1))
    assert (spine.hosts, spine.up, spine.level) == ((), (), 1)


def test_adapters_without_a_host_are_no_hosts(fixture):
    found = read(fixture("ibnet.out"))
    assert "1 aggregation nodes inside switches are no hosts" in found.notes
    assert "1 adapters do not name their host and are left out" in found.notes
    assert [nic.name for nic in found.node.nics] == ["mlx5_0", "mlx5_1"]
    assert {nic.bytes_per_s for nic in found.node.nics} == {50e9}
    assert found.node.gpus == 0
    assert "1 of 4 hosts have not 2 named adapter ports: pod1-n4" in found.notes


def test_switches_of_one_level_have_each_link_once():
    text = ""
    for own, other in ((1, 2), (2, 1)):
        text += f'Switch\t36 "S-{own}"\t\t# "sw{own}" base port 0 lid {own} lmc 0\n'
        text += f'[1]\t"H-{own}"[1]({own}) \t\t# "host{own} HCA-1" lid 3{own} 4xEDR\n'
        text += f'[2]\t"S-{other}"[2]\t\t# "sw{other}" lid {other} 4xEDR\n\n'
        text += f'Ca\t1 "H-{own}"\t\t# "host{own} HCA-1"\n'
        text += f'[1]({own}) \t"S-{own}"[1]\t\t# lid 3{own} lmc 0 "sw{own}" lid {own} 4xEDR\n\n'
    found = read_text(text, "x")
    assert [switch.up for switch in found.switches] == [(("sw2", 100e9 / 8, 1),), ()]
    assert "switches of one level are linked with each other" in found.notes


def test_adapters_must_name_some_host(fixture):
    text = fixture("ibnet.out").read_text()
    for host in range(1, 5):
        text = text.replace(f"pod1-n{host} mlx5", "MT4129 ConnectX7   Mellanox mlx5")
    with pytest.raises(SpecError, match="none of the adapters names its host"):
        read_text(text, "x")


def test_switches_of_one_chassis_keep_names_of_their_own(fixture):
    text = fixture("ibnet.out").read_text()
    text = text.replace("MF0;row1-leaf-a:MQM9700/U1", "MF0;box:CS7500/L1/U1").replace(
        "MF0;row1-leaf-b:MQM9700/U1", "MF0;box:CS7500/L2/U1"
    )
    names = [switch.name for switch in read_text(text, "x").switches]
    assert names == ["MF0;box:CS7500/L1/U1", "MF0;box:CS7500/L2/U1", "row1-spine"]


def test_a_run_without_privileges_is_no_fabric(fixture):
    text = fixture("ibnet.out").read_text()
    alone = "vendid=0x2c9\n" + text[text.index("Ca\t1") :].split("\n")[0] + "\n"
    with pytest.raises(SpecError, match="no switches or blocks found in x: 1 adapters; run ibnetdiscover as root"):
        read_text(alone, "x")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("4xNDR", "4xNXR", "no record or port with a rate such as 4xNDR"),
        ("4xNDR", "4xHDR", "does not lead back"),
        ('[31]\t"S-03"[1]', '[31]\t"S-03"[3]', "does not lead back"),
        ('[31]\t"S-03"[1]', '[31]\t"S-04"[1]', "S-04 has no record"),
        ('Ca\t1 "H-11"', 'Ca\t1 "H-10"', "second record|no record"),
    ],
)
def test_a_cable_has_two_ends_that_agree(fixture, old, new, what):
    text = fixture("ibnet.out").read_text()
    assert old in text
    with pytest.raises(SpecError, match=what):
        read_text(text.replace(old, new, 1), "x")


@pytest.mark.parametrize(
    ("rate", "gbit"),
    [("4xSDR", 8), ("4xDDR", 16), ("4xQDR", 32), ("4xFDR10", 40), ("1xEDR", 25), ("2xNDR", 200), ("4xXDR", 800)],
)
def test_rates_are_data_rates(fixture, rate, gbit):
    found = read_text(fixture("ibnet.out").read_text().replace("4xNDR", rate), "x")
    assert found.switches[0].up == (("row1-spine", gbit * 1e9 / 8, 2),)
