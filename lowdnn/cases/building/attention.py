"""Gradients of attention and rotary position embedding for the builder of cases."""

from __future__ import annotations

from lowdnn.enums import DataType
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import SdpaCentredBackward
from lowdnn.ops.sdpa_fp8_backward import LARGEST, SdpaFp8Backward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor


class AttentionBuilder(NodeWriter):
    """Methods of ``CaseBuilder``."""

    def sdpa_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        d_o: Tensor,
        stats: Tensor,
        *,
        scale: Tensor | None = None,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        left: int | None = None,
        right: int | None = None,
        is_bottom_right: bool = False,
        is_deterministic: bool = False,
        store: DataType | None = None,
        store_dq: DataType | None = None,
        dbias: Tensor | None = None,
        inner: Subgraph | None = None,
        centre_scales: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv), stored as q, k and v lie, in ``store``, dq in ``store_dq``, or in their types."""
        dq, dk, dv = (
            self.tensor(tensor.dims, kind or tensor.data_type, strides=tensor.strides, name=name)
            for name, tensor, kind in (("dq", q, store_dq or store), ("dk", k, store), ("dv", v, store))
        )
        ports = (q, k, v, o, d_o, stats, dq, dk, dv, scale, seq_len_q, seq_len_kv, dbias, inner)
        band = (left, right, is_bottom_right, is_deterministic)
        scaled = SdpaCentredBackward(*ports, *band, centre_scales=centre_scales) if centre_scales else None
        self._operations.append(scaled or SdpaBackward(*ports, *band))
        return dq, dk, dv

    def sdpa_fp8_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        d_o: Tensor,
        stats: Tensor,
        numbers: tuple[Tensor, ...],
        *,
        scale: Tensor | None = None,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        left: int | None = None,
        right: int | None = None,
        is_bottom_right: bool = False,
        is_deterministic: bool = False,
        store: DataType | None = None,
        inner: Subgraph | None = None,
    ) -> tuple[Tensor, ...]:
        """(dq, dk, dv), stored as q, k and v lie, in ``store`` or in the type of d_o, and the largest magnitudes."""
        gradients = {
            name: self.tensor(tensor.dims, store or d_o.data_type, strides=tensor.strides, name=name)
            for name, tensor in {"dq": q, "dk": k, "dv": v}.items()
        }
        largest = tuple(self.tensor((1, 1, 1, 1), DataType.FLOAT, name=f"amax_{port}") for port in LARGEST)
        operation = SdpaFp8Backward(
            q=q,
            k=k,
            v=v,
            o=o,
            d_o=d_o,
            stats=stats,
            scale=scale,
            seq_len_q=seq_len_q,
            seq_len_kv=seq_len_kv,
            inner=inner,
            left=left,
            right=right,
            is_bottom_right=is_bottom_right,
            is_deterministic=is_deterministic,
            numbers=numbers,
            largest=largest,
            **gradients,
        )
        self._operations.append(operation)
        return (*gradients.values(), *largest)

    def rope(
        self,
        x: Tensor,
        freqs: Tensor,
        *,
        output_scale: float = 1.0,
        rope_dim: int = 0,
        is_gradient: bool = False,
        store: DataType | None = None,
    ) -> Tensor:
        """y of x, or dx of dy, stored as that lies, in ``store`` or in its type."""
        name = "dx" if is_gradient else "y"
        y = self.tensor(x.dims, store or x.data_type, strides=x.strides, name=name)
        operation = RopeBackward if is_gradient else RopeForward
        self._operations.append(operation(x, y, freqs, output_scale, rope_dim))
        return y
