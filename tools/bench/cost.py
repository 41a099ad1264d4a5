"""Cost of a million images, from the benchmark's rows: ``python -m tools.bench.cost --price 4.00 resnet50 ...``.

The time of a network is the sum of its convolutions' forward times in ``results/<card>/conv.csv``, each as often as the
network has the layer:

    cost = 1e6 · price / (3600 · images per second)

lowdnn stands beside the fastest peer of each layer. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from lowdnn.bench.networks import networks

_RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class NetworkTime:
    """A batch through a network: microseconds of lowdnn, and of the fastest peer of each layer."""

    network: str
    batch: int
    us: float
    peer_us: float


def network_time(network: str, card: str) -> NetworkTime:
    """Raises SystemExit where the network, or the row of one of its layers, is not there."""
    if network not in networks():
        sys.exit(f"network: expected one of {', '.join(networks())}, got {network!r}")
    path = _RESULTS / card / "conv.csv"
    if not path.is_file():
        sys.exit(f"card: expected a folder of {_RESULTS.name} with conv.csv, got {card!r}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    layers = networks()[network]
    missing = [str(layer) for layer in layers if not rows.get(str(layer), {}).get("peer_us")]
    if missing:
        sys.exit(f"{path.name}: expected a row of each layer of {network}, got none of {missing[0]}")
    us, peer_us = (
        sum(count * float(rows[str(layer)][name]) for layer, count in layers.items()) for name in ("us", "peer_us")
    )
    return NetworkTime(network, next(iter(layers)).n, us, peer_us)


def cost(price: float, images_per_second: float) -> float:
    """The cost of a million images at ``price`` an hour."""
    return 1e6 * price / (3600 * images_per_second)


def row(time: NetworkTime, price: float) -> str:
    """A row of the table: times, images a second, and the cost of a million images, also with the peers' times."""
    rate, peer_rate = (1e6 * time.batch / us for us in (time.us, time.peer_us))
    figures = (time.network, time.batch, f"{time.us:.0f} us", f"{rate:.0f}")
    costs = (f"{cost(price, rate):.3f}", f"{cost(price, peer_rate):.3f}")
    return f"| {' | '.join(map(str, (*figures, *costs)))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="a section of lowdnn/bench/networks.txt")
    parser.add_argument("--price", type=float, required=True, help="of an hour of the GPU, in any currency")
    parser.add_argument("--card", default="h200", help="folder of results (default: h200)")
    arguments = parser.parse_args()
    if not arguments.price > 0:
        parser.error(f"price: expected more than 0, got {arguments.price}")
    print("| network | batch | time of lowdnn | images a second | cost of a million | of the fastest peer |")
    print("|---|---|---|---|---|---|")
    for name in arguments.networks:
        print(row(network_time(name, arguments.card), arguments.price))


if __name__ == "__main__":
    main()
