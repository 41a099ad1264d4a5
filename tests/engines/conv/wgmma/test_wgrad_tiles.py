"""What the model of filter gradients counts."""

from __future__ import annotations

from random import Random

from lowdnn.engines.conv.wgmma.wgrad_tiles import _busiest


def test_the_busiest_cluster_takes_turns_to_and_fro() -> None:
    random = Random()
    for _ in range(300):
        clusters = random.randint(1, 12)
        parts = [(random.randint(1, 20), random.randint(1, 20)) for _ in range(random.randint(1, 4))]
        items = sorted((length for length, count in parts for _ in range(count)), reverse=True)
        turns = [items[first : first + clusters] for first in range(0, len(items), clusters)]
        busy = [0] * clusters
        for turn, lengths in enumerate(turns):
            places = range(clusters) if (len(turns) - 1 - turn) % 2 == 0 else range(clusters - 1, -1, -1)
            for place, length in zip(places, lengths, strict=False):
                busy[place] += length
        assert _busiest(parts, clusters) == max(busy), (parts, clusters)
