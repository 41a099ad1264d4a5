"""Several devices: communicators in stream order, and training with data parallelism.

    place = Place.from_environment()                     # torchrun, mpirun or srun says which rank this is
    with Meeting(place) as meeting, Handle.open("cuda", ordinal=place.local_rank) as handle:
        with connect(meeting.store, everyone(place), handle.runtime.context) as communicator:
            communicator.all_reduce(gradients, gradients, stream=handle.borrowed_stream())

NCCL carries the data between GPUs (``pip install lowdnn[distributed]``); between emulated devices, each a thread's, the
host does. Importing this package imports neither NCCL nor a driver.
"""

from __future__ import annotations

from lowdnn.distributed.all_reduce_norm import AllReduceNorm
from lowdnn.distributed.buckets import BUCKET_BYTES, GradientBuckets, plan_buckets
from lowdnn.distributed.communicator import Communicator, ReduceOp
from lowdnn.distributed.errors import CommunicationError, CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.file_store import FileStore
from lowdnn.distributed.in_process import InProcessCommunicator, run_in_threads
from lowdnn.distributed.launching import launch
from lowdnn.distributed.meeting_point import MeetingPoint
from lowdnn.distributed.nccl import NcclCommunicator, connect
from lowdnn.distributed.peer_buffers import PeerBuffers
from lowdnn.distributed.place import Place
from lowdnn.distributed.rank_sum import RankSum
from lowdnn.distributed.rendezvous import Meeting, Members, everyone, identifier, survivors
from lowdnn.distributed.split import Split
from lowdnn.distributed.store import Store
from lowdnn.distributed.tcp_store import TcpStore, TcpStoreServer

__all__ = [
    "BUCKET_BYTES",
    "AllReduceNorm",
    "CommunicationError",
    "CommunicationTimeoutError",
    "Communicator",
    "FileStore",
    "GradientBuckets",
    "InProcessCommunicator",
    "Meeting",
    "MeetingPoint",
    "Members",
    "NcclCommunicator",
    "PeerBuffers",
    "PeerFailedError",
    "Place",
    "RankSum",
    "ReduceOp",
    "Split",
    "Store",
    "TcpStore",
    "TcpStoreServer",
    "connect",
    "everyone",
    "identifier",
    "launch",
    "plan_buckets",
    "run_in_threads",
    "survivors",
]
