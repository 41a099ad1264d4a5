"""The place of a process among those that work together: its rank, how many there are, and where they meet.

Launchers tell it in environment variables:

| launcher | rank                 | ranks                | rank within the node       | meeting place            |
| -------- | -------------------- | -------------------- | -------------------------- | ------------------------ |
| torchrun | RANK                 | WORLD_SIZE           | LOCAL_RANK                 | MASTER_ADDR, MASTER_PORT |
| Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE | OMPI_COMM_WORLD_LOCAL_RANK | as torchrun              |
| MPICH    | PMI_RANK             | PMI_SIZE             | MPI_LOCALRANKID            | as torchrun              |
| SLURM    | SLURM_PROCID         | SLURM_NTASKS         | SLURM_LOCALID              | else the first node      |

The first launcher whose rank is set counts, in this order. Where torchrun itself listens at MASTER_PORT, which
TORCHELASTIC_USE_AGENT_STORE=True says, ranks meet at the next port. LOWDNN_STORE_HOSTED=1, which ``launching.launch``
sets, says that the launcher keeps lowdnn's store there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn import checks
from lowdnn.config import variables
from lowdnn.status import BadParamError, InvalidValueError, OutOfBoundError

#: The most ranks that a place may be one of: far beyond any machine, so that a slip of the pen is found.
MAX_RANKS = 1 << 20
#: The largest port of TCP.
MAX_PORT = 65535
#: SLURM jobs without MASTER_PORT take one of these ports, by the job's number.
_SLURM_PORTS = range(20000, 30000)


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    world_size: str
    local_rank: str


_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    _Launcher("SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_MEETING = ("MASTER_ADDR", "MASTER_PORT")
_SLURM = ("SLURM_JOB_NODELIST", "SLURM_JOB_ID")
_AGENT_STORE, _HOSTED = "TORCHELASTIC_USE_AGENT_STORE", "LOWDNN_STORE_HOSTED"
_NAMES = (
    *(name for one in _LAUNCHERS for name in (one.rank, one.world_size, one.local_rank)),
    *(*_MEETING, *_SLURM, _AGENT_STORE, _HOSTED),
)


@dataclass(frozen=True)
class Place:
    """Rank ``rank`` of ``world_size``; ``local_rank`` counts within the node.

    ``address``, ``port``: where the TCP store listens; "" and 0 where nothing says so. Rank 0 keeps it, unless
    ``is_hosted``: then the launcher does.
    ``launcher`` names who said all of this, for messages.
    Raises AttributeTypeError and OutOfBoundError for numbers that are none or out of range.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str = ""
    port: int = 0
    is_hosted: bool = False
    launcher: str = "by hand"

    def __post_init__(self) -> None:
        checks.integer(self.world_size, "Place.world_size", 1, MAX_RANKS)
        checks.integer(self.rank, "Place.rank", 0, self.world_size - 1)
        checks.integer(self.local_rank, "Place.local_rank", 0, self.world_size - 1)
        checks.integer(self.port, "Place.port", 0, MAX_PORT)
        checks.instance(self.address, str, "Place.address")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Place | None:
        """The place that the launcher gave this process; None where no launcher's rank is set.

        Raises BadParamError for variables that are missing beside the rank, or that are no numbers.
        """
        found = variables(_NAMES, environment)
        launcher = next((one for one in _LAUNCHERS if one.rank in found), None)
        if launcher is None:
            return None
        address, port = _meeting_place(found, launcher)
        return cls(
            _number(found, launcher.rank, launcher),
            _number(found, launcher.world_size, launcher),
            _number(found, launcher.local_rank, launcher),
            address,
            port,
            found.get(_HOSTED) == "1",
            launcher.name,
        )

    def ordinal(self, gpus: int) -> int:
        """The GPU of this rank among ``gpus`` that its process sees: one of its own, where the launcher shows no other.

        Raises OutOfBoundError where there are several, and fewer than ranks on the node.
        """
        if gpus != 1 and self.local_rank >= gpus:
            raise OutOfBoundError.at("Place.local_rank", expected=f"below the {gpus} GPUs here", got=self.local_rank)
        return 0 if gpus == 1 else self.local_rank

    def environment(self) -> dict[str, str]:
        """torchrun's variables, from which ``from_environment`` reads this place in another process."""
        meeting = {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)} if self.address else {}
        numbers = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": self.local_rank}
        hosted = {_HOSTED: "1"} if self.is_hosted else {}
        return {name: str(number) for name, number in numbers.items()} | meeting | hosted


def first_host(nodes: str) -> str:
    """The first host of a SLURM list of nodes: ``gpu[003-005,9],cpu1`` begins with ``gpu003``; "" where there is none.

    Source: SLURM's manual of scontrol, "show hostnames".
    """
    found = re.match(r"\s*([\w.-]+)(?:\[(\d+)[^\]]*\])?([\w.-]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def _meeting_place(found: Mapping[str, str], launcher: _Launcher) -> tuple[str, int]:
    address, port = found.get("MASTER_ADDR", ""), 0
    if launcher.name == "SLURM" and not address:
        address = first_host(found.get("SLURM_JOB_NODELIST", ""))
        if "SLURM_JOB_ID" in found:
            port = _SLURM_PORTS[_number(found, "SLURM_JOB_ID", launcher) % len(_SLURM_PORTS)]
    if "MASTER_PORT" in found:
        port = _number(found, "MASTER_PORT", launcher) + (found.get(_AGENT_STORE) == "True")
    return address, port


def _number(found: Mapping[str, str], name: str, launcher: _Launcher) -> int:
    text = found.get(name)
    if text is None:
        raise BadParamError.at(
            f"environment.{name}",
            expected=f"a number, since {launcher.rank} of {launcher.name} is set",
            got="no such variable",
            hint=f"set it, or unset {launcher.rank}",
        )
    if not re.fullmatch("[0-9]{1,9}", text):
        raise InvalidValueError.at(f"environment.{name}", expected="a number of up to 9 digits", got=repr(text))
    return int(text)
