"""Predicts the step time of more GPUs from figures of 1 and 2: ``python -m tools.scaling FILE``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tools.scaling.model import Model, read

_BUCKETS_MIB = (1, 4, 25, 100)
_MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what tools.scaling.measure wrote")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], metavar="N")
    parser.add_argument("--node", type=int, default=8, help="GPUs of a node (default 8)")
    parser.add_argument(
        "--network-gb-s", type=float, default=50.0, help="network of each GPU, one way (default 50 GB/s)"
    )
    parser.add_argument("--network-hop-us", type=float, default=5.0, help="latency of the network (default 5 us)")
    arguments = parser.parse_args()
    try:
        print("\n".join(_report(arguments)))
    except ValueError as error:
        parser.exit(1, f"tools.scaling: {error}\n")
    return 0


def _report(arguments: argparse.Namespace) -> list[str]:
    """The calibrated links, the table, and what was measured beside the model. Raises ValueError."""
    model, figures = read(arguments.file)
    links = replace(
        model.links,
        node=arguments.node,
        network_bytes_per_us=1e3 * arguments.network_gb_s,
        network_hop_us=arguments.network_hop_us,
    )
    lines = [
        f"{figures['card']}, {figures['network']}, batch {figures['batch']} a GPU",
        f"all-reduce: start {links.start_us:.1f} us, hop {links.hop_us:.1f} us, {links.bytes_per_us / 1e3:.0f} GB/s; "
        f"contention {model.contention:.2f}\n",
        *table(replace(model, links=links), arguments.ranks),
        "\nmeasured                       step ms    model ms     error",
    ]
    for one in figures["steps"]:
        predicted = model.step_us(one["ranks"], one["bucket_bytes"], overlaps=one["overlaps"])
        how = "overlapped" if one["overlaps"] else "in turn"
        label = f"{one['ranks']} GPUs, {one['bucket_bytes'] / _MIB:g} MiB, {how}"
        error = predicted / one["step_us"] - 1
        lines.append(f"{label:28s} {one['step_us'] / 1e3:9.2f} {predicted / 1e3:11.2f} {error:+9.1%}")
    return lines


def table(model: Model, ranks: list[int]) -> list[str]:
    """Lines of a table: for each number of GPUs the step and the efficiency, by bucket size and without overlap."""
    heads = [*(f"{size} MiB" for size in _BUCKETS_MIB), "25 MiB in turn"]
    lines = ["GPUs" + "".join(f"{head:>20s}" for head in heads), "    " + "      step ms  effic." * len(heads)]
    for count in ranks:
        cells = [(size * _MIB, True) for size in _BUCKETS_MIB] + [(25 * _MIB, False)]
        text = "".join(
            f"{model.step_us(count, size, overlaps=overlaps) / 1e3:13.2f}"
            f"{model.efficiency(count, size, overlaps=overlaps):7.3f}"
            for size, overlaps in cells
        )
        lines.append(f"{count:4d}{text}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
