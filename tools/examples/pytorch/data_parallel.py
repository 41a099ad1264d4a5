"""Data-parallel training, a process for each GPU: ``python -m tools.examples.pytorch.data_parallel``.

Each rank trains on batches of its own, and ``DistributedDataParallel`` averages their gradients: by NCCL on GPUs, by
Gloo on CPUs. ``--launch spawn`` starts the ranks from this program by ``torch.multiprocessing``; ``torchrun`` starts
them by torch's launcher. The losses are those of rank 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tools.examples.pytorch.models import images, network
from tools.examples.pytorch.paths import Steps, arguments, compare, device, on_path

_MODULE = "tools.examples.pytorch.data_parallel"


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__ or "", steps=8, batch=64, size=32, ranks=max(2, torch.cuda.device_count()), port=29533)
    parser.add_argument("--launch", choices=("spawn", "torchrun"), default="spawn")
    given = parser.parse_args(argv)
    numbers = {name: getattr(given, name) for name in ("steps", "batch", "size", "ranks", "port")}
    options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    if given.only is None:
        return compare(_MODULE, given, [*options, "--launch", given.launch])
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), given.only, numbers)
        return 0
    if given.launch == "spawn":
        torch.multiprocessing.spawn(run, (given.only, numbers), given.ranks)
        return 0
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks), "--master-port", str(given.port)]
    return subprocess.run([sys.executable, *launcher, "-m", _MODULE, "--only", given.only, *options]).returncode


def run(rank: int, path: str, numbers: dict[str, int]) -> None:
    """One rank; rank 0 prints the steps as a line of JSON."""
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    address = f"tcp://127.0.0.1:{numbers['port']}"
    distributed.init_process_group(
        "nccl" if is_gpu else "gloo",
        init_method="env://" if "RANK" in os.environ else address,
        rank=rank,
        world_size=numbers["ranks"],
    )
    try:
        found = on_path(path, lambda: train(rank, numbers["steps"], numbers["batch"], numbers["size"]))
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(asdict(found)), flush=True)


def train(rank: int, steps: int, batch: int, size: int) -> Steps:
    place = device()
    model = DistributedDataParallel(network().to(place), device_ids=[place] if place.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = Steps()
    for step in range(steps):
        x, target = (tensor.to(place) for tensor in images(batch, step, size, rank))
        with found.timed():
            loss = torch.nn.functional.cross_entropy(model(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.losses.append(loss.item())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    largest, least = weights.clone(), weights.clone()
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    found.notes.append(f"weights of {distributed.get_world_size()} ranks are equal: {torch.equal(largest, least)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
