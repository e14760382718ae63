"""HBM bytes of each position, by bucket: state of parameters, activations over the schedule, and what lies beside them.

`state` counts what a rank holds between steps, `kept` (with `eager`, `fused`, `loss`) what a piece keeps of a
micro-batch and `need` what a whole stage does, `fold` puts both over the schedule text, `beside` adds what PyTorch's
allocator does not give out.
"""

from __future__ import annotations

from moeplan.resources.memory.beside import Beside as Beside
from moeplan.resources.memory.beside import beside as beside
from moeplan.resources.memory.beside import process_groups as process_groups
from moeplan.resources.memory.closed import CLOSED as CLOSED
from moeplan.resources.memory.closed import IN_V as IN_V
from moeplan.resources.memory.closed import closed_peaks as closed_peaks
from moeplan.resources.memory.closed import closed_static_bytes as closed_static_bytes
from moeplan.resources.memory.closed import in_v as in_v
from moeplan.resources.memory.fold import peak_activation_bytes as peak_activation_bytes
from moeplan.resources.memory.fold import peak_activations as peak_activations
from moeplan.resources.memory.held import pieces_at as pieces_at
from moeplan.resources.memory.held import replica_parameters as replica_parameters
from moeplan.resources.memory.kept import Kept as Kept
from moeplan.resources.memory.kept import piece_bytes as piece_bytes
from moeplan.resources.memory.need import Live as Live
from moeplan.resources.memory.spare import has_spare as has_spare
from moeplan.resources.memory.spare import most_spare as most_spare
from moeplan.resources.memory.spare import spare as spare
from moeplan.resources.memory.spare import without_spare as without_spare
from moeplan.resources.memory.state import State as State
from moeplan.resources.memory.state import held_parameters as held_parameters
from moeplan.resources.memory.state import host_bytes as host_bytes
from moeplan.resources.memory.state import state_bytes as state_bytes
from moeplan.resources.memory.state import static_bytes as static_bytes
from moeplan.resources.memory.state import updated_parameters as updated_parameters
from moeplan.resources.memory.track import Lengths as Lengths
from moeplan.resources.memory.track import Track as Track
from moeplan.resources.memory.track import tracks as tracks
