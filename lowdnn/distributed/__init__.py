"""Several devices: communicators in stream order, and training with data parallelism.

    place = Place.from_environment()                     # torchrun, mpirun or srun says which rank this is
    with Meeting(place) as meeting, lowdnn.Handle.open("cuda", ordinal=place.local_rank) as handle:
        with connect(meeting.store, everyone(place), handle.runtime.context) as communicator:
            communicator.all_reduce(gradients, gradients, stream=handle.borrowed_stream())

NCCL carries the data between GPUs (``pip install lowdnn[distributed]``); between emulated devices, each a thread's, the
host does. Importing this package imports neither NCCL nor a driver.
"""

from __future__ import annotations
