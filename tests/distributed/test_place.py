"""Ranks from the variables of launchers, or given by hand."""

from __future__ import annotations

import pytest

from lowdnn.distributed.place import Place, first_host
from lowdnn.distributed.rendezvous import Meeting
from lowdnn.status import AttributeTypeError, BadParamError, InvalidValueError, OutOfBoundError
from tests.support.errors import raises

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
MEETING = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("torchrun", TORCHRUN),
        ("Open MPI", OPEN_MPI | MEETING),
        ("MPICH", {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"} | MEETING),
        ("SLURM", SLURM | MEETING),
        ("torchrun", TORCHRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}),
        ("Open MPI", OPEN_MPI | MEETING | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}),
    ],
)
def test_each_launcher_is_understood(launcher: str, variables: dict[str, str]) -> None:
    """Where one starts another, as srun does mpirun, the inner one counts."""
    assert Place.from_environment(variables) == Place(5, 8, 1, "node0", 29500, launcher=launcher)


def test_slurm_tells_where_to_meet() -> None:
    place = Place.from_environment(SLURM | {"SLURM_JOB_NODELIST": "gpu[003-005,9],cpu1", "SLURM_JOB_ID": "1234567"})
    assert place is not None
    assert (place.address, place.port) == ("gpu003", 24567)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("a1", "a1"),
        ("a[01-12]", "a01"),
        ("a[7,9]-ib,b", "a7-ib"),
        ("n1,n2", "n1"),
        ("rack-2.node[1-2]", "rack-2.node1"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_torchruns_own_store_keeps_its_port() -> None:
    place = Place.from_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert place is not None
    assert place.port == 29501


def test_a_rank_has_a_gpu_of_its_own() -> None:
    """By its number on the node; some launchers show each process one GPU alone."""
    place = Place(5, 8, 1)
    assert (place.ordinal(4), place.ordinal(1)) == (1, 0)
    with raises(OutOfBoundError, "Place.local_rank", expected="below the 2 GPUs", got="2"):
        Place(6, 8, 2).ordinal(2)
    with raises(OutOfBoundError, "Place.local_rank"):
        place.ordinal(0)


def test_no_launcher_no_place() -> None:
    assert Place.from_environment({"WORLD_SIZE": "2", "MASTER_ADDR": "x"}) is None
    assert Place.from_environment({"RANK": " "}) is None
    with raises(AttributeTypeError, "Meeting.place", expected="a Place", got="None"):
        Meeting(None)  # type: ignore[arg-type]


def test_a_place_survives_the_way_through_the_environment() -> None:
    for place in (Place(0, 1, 0), Place(3, 4, 1, "127.0.0.1", 2000, is_hosted=True)):
        found = Place.from_environment(place.environment())
        assert found is not None
        assert found == Place(**(vars(place) | {"launcher": "torchrun"}))


@pytest.mark.parametrize(
    ("changes", "error", "where"),
    [
        ({"RANK": "8"}, OutOfBoundError, "Place.rank"),
        ({"RANK": "one"}, InvalidValueError, "environment.RANK"),
        ({"RANK": "-1"}, InvalidValueError, "environment.RANK"),
        ({"RANK": "\u0661"}, InvalidValueError, "environment.RANK"),
        ({"WORLD_SIZE": ""}, BadParamError, "environment.WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, OutOfBoundError, "Place.world_size"),
        ({"WORLD_SIZE": "9" * 30}, InvalidValueError, "environment.WORLD_SIZE"),
        ({"LOCAL_RANK": ""}, BadParamError, "environment.LOCAL_RANK"),
        ({"MASTER_PORT": "65536"}, OutOfBoundError, "Place.port"),
        ({"MASTER_PORT": "http"}, InvalidValueError, "environment.MASTER_PORT"),
    ],
)
def test_variables_that_are_wrong_are_named(changes: dict[str, str], error: type[BadParamError], where: str) -> None:
    with raises(error, where):
        Place.from_environment(TORCHRUN | changes)


def test_places_by_hand_are_checked() -> None:
    for arguments, error, where in (
        ((2, 2, 0), OutOfBoundError, "Place.rank"),
        ((True, 2, 0), AttributeTypeError, "Place.rank"),
        ((0, 2, 2), OutOfBoundError, "Place.local_rank"),
        ((0, 1 << 40, 0), OutOfBoundError, "Place.world_size"),
    ):
        with raises(error, where):
            Place(*arguments)
