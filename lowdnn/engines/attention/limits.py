"""The limits of the graphs that engines of attention take."""

from __future__ import annotations

from lowdnn.engines.limits import Group, Limits
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.transpose import Transpose

#: Index spaces are those of the scores and of the output.
FORWARD_LIMITS = Limits(
    (
        Group((Softmax,), 1),
        Group((MatmulOperation,), 2),
        Group((Transpose,), 1),
        Group((BlockMask,), 1),
        Group((PagedCacheLoad,), 2),
        Group((PointwiseOperation, RngOperation, ReductionOperation, RaggedMove)),
    )
)
BACKWARD_LIMITS = Limits((Group((SdpaBackward,), 1), Group((RaggedMove,))))
