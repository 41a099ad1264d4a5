"""How the ranks of a training split a batch, and where its sums come from.

Without ``shards`` each rank computes one part of the batch, and sums over the batch are all-reduced. With ``shards``
the batch falls into that many parts whatever the number of ranks. Each part is computed by itself, by the same kernels
everywhere, and its sums are added up in the order of the parts. So every number of ranks that divides ``shards``, one
included, computes the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import checks
from lowdnn.distributed.communicator import Communicator
from lowdnn.status import InvalidValueError


@dataclass(frozen=True)
class Split:
    """communicator: the ranks' own; None for one rank alone.  shards: parts of a batch in the deterministic mode.

    Raises BadParamError for shards that the ranks cannot share equally.
    """

    communicator: Communicator | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.shards is None:
            return
        if checks.integer(self.shards, "Split.shards", 1) % self.size:
            raise InvalidValueError.at("Split.shards", expected=f"a multiple of {self.size} ranks", got=self.shards)

    @property
    def rank(self) -> int:
        return 0 if self.communicator is None else self.communicator.rank

    @property
    def size(self) -> int:
        return 1 if self.communicator is None else self.communicator.size

    @property
    def is_whole(self) -> bool:
        """Whether one rank computes the whole batch at once."""
        return self.size == 1 and self.shards is None

    @property
    def parts(self) -> int:
        """The parts that a batch falls into, over all ranks."""
        return self.size if self.shards is None else self.shards

    @property
    def own_parts(self) -> range:
        """The parts of this rank."""
        count = self.parts // self.size
        return range(self.rank * count, (self.rank + 1) * count)

    def part_of(self, batch: int) -> int:
        """The samples of each part. Raises BadParamError for a batch that does not fall into equal parts."""
        if checks.integer(batch, "Split.batch", 1) % self.parts:
            raise InvalidValueError.at("Split.batch", expected=f"a multiple of {self.parts} parts", got=batch)
        return batch // self.parts
