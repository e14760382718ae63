"""Names that publications use, resolved to models and machines: `kind,name,target,overrides[,note]`.

`target` is a shipped name, a file beside the table, or another name of the table; `overrides` are settings as in
`--set`, separated by `;`, whose leading `model.` or `cluster.` may be left out. Without a target the name is known to
be something that cannot be planned, and `note` says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from msgspec import structs

from moeplan.cost.durations import Machine
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, check_cluster, first_gpus
from moeplan.spec.model import ModelSpec
from moeplan.spec.override import override
from moeplan.spec.record import Record
from moeplan.spec.shipped import load_calibration, load_cluster, load_model, shipped
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.validation.outcome import Skip, reason
from moeplan.validation.tables import Text, read_table

PUBLISHED = Path(str(resources.files("moeplan"))) / "published"
"""The tables that ship, with their sources."""


Kind: TypeAlias = Literal["model", "hardware"]


class Name(Record):
    """One line of a table of names."""

    kind: Kind
    name: Text
    target: str = ""
    overrides: str = ""
    note: str = ""


class _Entry(NamedTuple):
    name: Name
    file: Path


class Names:
    """What names mean; every name is resolved once, and every machine's routes are searched once."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Names from `files`; of a name that several have, the last file's meaning is taken."""
        self._entries = {
            (name.kind, name.name): _Entry(name, file)
            for file in files
            for name in read_table(file, Name, optional=("note",), key=("kind", "name"))
        }
        self._cases: dict[tuple[Kind, str], Case] = {}
        self._machines: dict[tuple[str, int], Machine] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._sized: dict[tuple[str, int], ClusterSpec] = {}

    def model(self, text: str) -> ModelSpec:
        """The model called `text`; Skip where it cannot be planned, SpecError where nobody says what it is."""
        return self._case("model", text, ()).model

    def cluster(self, text: str) -> ClusterSpec:
        """The machine called `text`, as large as its file says; Skip and SpecError as `model`."""
        return self._case("hardware", text, ()).cluster

    def part(self, text: str, gpus: int) -> ClusterSpec:
        """`gpus` GPUs of the machine called `text`: whole nodes, as many as needed, or a part of one node.

        Skip where they are neither.
        """
        key = (text, gpus)
        if key not in self._sized:
            self._sized[key] = _sized(self.cluster(text), gpus)
        return self._sized[key]

    def machine(self, text: str, gpus: int) -> Machine:
        """Routes of `part` and the efficiencies that its cluster names."""
        cluster = self.part(text, gpus)
        key = (text, gpus)
        if key not in self._machines:
            self._machines[key] = Machine(Fabric(build(cluster)), self.calibration(text))
        return self._machines[key]

    def calibration(self, text: str) -> Calibration:
        """The efficiencies that the machine called `text` names."""
        name = self.cluster(text).calibration
        if name not in self._calibrations:
            self._calibrations[name] = load_calibration(name)
        return self._calibrations[name]

    def _case(self, kind: Kind, text: str, seen: tuple[str, ...]) -> Case:
        """A case whose model or cluster is what `text` means; the other is any."""
        key = (kind, text)
        if key not in self._cases:
            self._cases[key] = self._resolved(kind, text, seen)
        return self._cases[key]

    def _resolved(self, kind: Kind, text: str, seen: tuple[str, ...]) -> Case:
        entry = self._entries.get((kind, text))
        if entry is None:
            return self._loaded(kind, text, text)
        name, file = entry
        if text in seen:
            raise SpecError(f"{file}: {kind} {' -> '.join((*seen, text))} is a circle; a target is another name")
        if not name.target:
            raise Skip(f"{kind}: {name.note or 'it has no target'}")
        if (kind, name.target) in self._entries and name.target != text:
            case = self._case(kind, name.target, (*seen, text))
        else:
            case = self._loaded(kind, name.target, text, beside=file.parent)
        prefix = "model." if kind == "model" else "cluster."
        parts = [part.strip() for part in name.overrides.split(";") if part.strip()]
        try:
            return override(case, [p if p.startswith(prefix) else prefix + p for p in parts]) if parts else case
        except SpecError as error:
            raise SpecError(f"{file}: {kind} {text!r}: {error}") from None

    def _loaded(self, kind: Kind, target: str, text: str, beside: Path | None = None) -> Case:
        """The shipped record or the file `target`, in the folder `beside` or here, which `text` means."""
        known: Literal["model", "cluster"] = "model" if kind == "model" else "cluster"
        if target not in shipped(known):
            places = [str(beside / target)] if beside else []
            found = next((place for place in (*places, target) if os.path.exists(place)), None)
            if found is None:
                raise SpecError(
                    f"{kind} {text!r}: {target!r} is neither a shipped {known} nor a file; list it in a file for"
                    f' --names, with the columns kind,name,target,overrides: {kind},"{text}",{_EXAMPLES[kind]}'
                )
            target = found
        if kind == "model":
            return structs.replace(self._any, model=load_model(target))
        return structs.replace(self._any, cluster=load_cluster(target))

    @cached_property
    def _any(self) -> Case:
        return Case(
            model=load_model("tiny-moe"), cluster=load_cluster("laptop"), workload=Workload(seq_len=1, global_batch=1)
        )


_EXAMPLES = {"model": 'mixtral-8x7b,"num_layers=4"', "hardware": 'dgx-h100,"node.nic=200 Gbit/s"'}


def _sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    per_node = cluster.node.gpus
    if gpus > per_node and gpus % per_node:
        raise Skip(f"hardware: GPUs are not whole nodes of {per_node}")
    try:
        return check_cluster(first_gpus(structs.replace(cluster, nodes=max(1, gpus // per_node)), gpus))
    except SpecError as error:
        raise Skip(f"hardware: {reason(error)}") from None
