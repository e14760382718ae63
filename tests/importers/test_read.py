"""Any file in: its format is told from its content; what is cut, empty or unknown is refused in one line."""

import pytest

from moeplan.errors import SpecError
from moeplan.importers import read, read_text

FORMATS = {
    "tree.conf": "slurm",
    "block.conf": "slurm",
    "topology.yaml": "slurm",
    "show_tree.txt": "slurm",
    "show_block.txt": "slurm",
    "job.txt": "hosts",
    "smi.txt": "nvidia-smi",
    "rocm.txt": "rocm-smi",
    "nccl_dump.xml": "nccl-xml",
    "nccl_cloud.xml": "nccl-xml",
    "rccl.xml": "nccl-xml",
    "ibnet.out": "ibnetdiscover",
    "hwloc1.xml": "hwloc",
    "hwloc2.xml": "hwloc",
}
WHOLE_ONLY = [name for name, kind in FORMATS.items() if kind not in ("slurm", "hosts")]


def size(found):
    node = found.node
    inside = (node.gpus, len(node.nics), node.links, node.nic_of_gpu) if node else ()
    return (inside, found.hosts, found.switches, found.blocks)


@pytest.mark.parametrize(("name", "kind"), FORMATS.items())
def test_formats_are_told_from_content(fixture, tmp_path, name, kind):
    path = tmp_path / "file"
    path.write_bytes(fixture(name).read_bytes())
    assert read(path).format == kind


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_terminal_adds_changes_nothing(fixture, tmp_path, name):
    whole = read(fixture(name))
    lines = fixture(name).read_text().split("\n")
    noisy = "\r\n".join(f"\x1b[0;32m{line[:5]}\x1b[0m{line[5:]}\x1b[K" for line in lines)
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf\x1b]0;admin@login: ~\x07" + noisy.encode())
    assert read(path) == whole
    path.write_bytes(("\x1b]8;;file://x\x1b\\" + noisy).encode("utf-16"))
    assert read(path) == whole


@pytest.mark.parametrize("name", WHOLE_ONLY)
def test_no_beginning_of_a_file_is_a_smaller_machine(fixture, name):
    text = fixture(name).read_text()
    whole, refused = size(read_text(text, "x")), 0
    for end in range(len(text)):
        try:
            part = size(read_text(text[:end], "x"))
        except SpecError:
            refused += 1
        else:
            same_but_names = (part[0][0], part[0][1], part[0][2:], *part[1:])
            assert same_but_names == (whole[0][0], whole[0][1], whole[0][2:], *whole[1:])
    assert refused > len(text) / 3


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"# nothing\n# at all\n", "only comments"),
        (b"\x7fELF\x02\x01\0\0", "is a binary file"),
        (b"\x1f\x8b\x08\xff\xfe", "is not UTF-8 text"),
        (b"The quick brown fox\n", "begins with 'The quick brown fox', of no known format; right is Slurm's"),
        (b'{"gpus": 8}', "of no known format"),
        (b"<", "column"),
        (b"<!-- only a comment -->", "no element found"),
    ],
)
def test_what_is_no_topology_is_refused_in_one_line(tmp_path, content, what):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=what) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(SpecError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(SpecError, match="No such file"):
        read(tmp_path / "none")


def test_every_file_says_what_is_not_in_it(fixture):
    for name in FORMATS:
        assert read(fixture(name)).notes, name
