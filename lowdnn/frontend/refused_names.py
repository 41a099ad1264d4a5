"""Names of cudnn-frontend for what lowdnn does not compute: using them raises NotSupportedError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from lowdnn.status import NotSupportedError


@dataclass(frozen=True)
class RefusedName:
    """Raises NotSupportedError where it is called, and so do its attributes.  is_for: the subject of the name."""

    name: str
    is_for: str
    hint: str

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupportedError.at(
            f"cudnn.{self.name}", expected="what lowdnn computes", got=self.is_for, hint=self.hint
        )

    def __getattr__(self, attribute: str) -> RefusedName:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return RefusedName(f"{self.name}.{attribute}", self.is_for, self.hint)


def refused_names() -> dict[str, RefusedName]:
    """The refused names, each with its object."""
    return {name: RefusedName(name, is_for, hint) for is_for, hint, names in REFUSED_GROUPS for name in names.split()}


#: Subject of the names, lowdnn's substitute or nothing, and the names.
REFUSED_GROUPS = (
    (
        "a product with a fused end, by a kernel of cudnn-frontend's own",
        "pygraph's matmul and moe_grouped_matmul fuse what follows them",
        """
        DiscreteGroupedGemmDswigluSm100 DiscreteGroupedGemmSwigluSm100 GemmAmaxSm100 GemmDsreluSm100
        GemmProjRopeMxfp8Bf16InSm100 GemmProjRopeMxfp8Mxfp8InSm100 GemmSreluSm100 GemmSwigluSm100
        GroupedGemmDgluSm100 GroupedGemmDsreluSm100 GroupedGemmDswigluSm100 GroupedGemmGluHadamardQuantSm100
        GroupedGemmGluHadamardSm100 GroupedGemmGluSm100 GroupedGemmQuantSm100 GroupedGemmSm100
        GroupedGemmSreluSm100 GroupedGemmSwigluSm100 GroupedGemmWgradSm100 MhcProjectionBackward
        discrete_grouped_gemm discrete_grouped_gemm_dswiglu_jax_sm100
        discrete_grouped_gemm_dswiglu_wrapper_sm100 discrete_grouped_gemm_swiglu_jax_sm100
        discrete_grouped_gemm_swiglu_wrapper_sm100 gemm_amax_jax_sm100 gemm_amax_wrapper_sm100
        gemm_dsrelu_jax_sm100 gemm_dsrelu_wrapper_sm100 gemm_proj_rope_mxfp8_jax_sm100
        gemm_proj_rope_mxfp8_wrapper_sm100 gemm_srelu_jax_sm100 gemm_srelu_wrapper_sm100 gemm_swiglu_jax_sm100
        gemm_swiglu_wrapper_sm100 get_grouped_gemm_wgrad_workspace_size_sm100 grouped_gemm
        grouped_gemm_dglu_jax_sm100 grouped_gemm_dglu_wrapper_sm100 grouped_gemm_dsrelu_jax_sm100
        grouped_gemm_dsrelu_wrapper_sm100 grouped_gemm_dswiglu_wrapper_sm100
        grouped_gemm_glu_hadamard_jax_forward grouped_gemm_glu_hadamard_quant_jax_forward
        grouped_gemm_glu_hadamard_quant_wrapper_sm100 grouped_gemm_glu_hadamard_wrapper_sm100
        grouped_gemm_glu_jax_sm100 grouped_gemm_glu_wrapper_sm100 grouped_gemm_jax_sm100
        grouped_gemm_quant_jax_forward grouped_gemm_quant_wrapper_sm100 grouped_gemm_srelu_jax_forward
        grouped_gemm_srelu_wrapper_sm100 grouped_gemm_swiglu_wrapper_sm100 grouped_gemm_wgrad_jax_sm100
        grouped_gemm_wgrad_wrapper_sm100 grouped_gemm_wrapper_sm100 mhc_projection_backward
        """,
    ),
    (
        "attention by a kernel of cudnn-frontend's own",
        "pygraph.sdpa has masks of blocks, score_mod and sinks",
        """
        AlignedHCABackward BSA CSA CSACompressorBackward CSACompressorForward CompactGqaBackward DSA
        FlexAttentionBwd FlexAttentionFwd GatedAttentionBlockBwd GatedAttentionBlockFwd NSA
        Nvfp4AttentionQatBackward SdpabwdSm100D256 SdpafwdSm100D256 TriangleAttentionFwd
        aligned_hca_backward_wrapper block_sparse_attention_backward block_sparse_attention_forward
        block_sparse_attention_fp8_forward compact_gqa_backward create_mask_plan csa_compressor_backward_wrapper
        csa_compressor_forward_wrapper flex_attn_func gated_attention_block gated_attention_block_backward
        gated_attention_block_forward hstu_attention_backward hstu_attention_forward hstu_lmsd_backward
        hstu_lmsd_forward mask_to_kv_lengths nvfp4_attention_qat_backward prefix_mask_to_kv_lengths
        sdpa_bwd_wrapper_sm100_d256 sdpa_fwd_wrapper_sm100_d256 sdpa_torch triangle_attention
        """,
    ),
    (
        "a norm with what follows it, by a kernel of cudnn-frontend's own",
        "pygraph.rmsnorm fuses pointwise operations",
        """
        RmsNormRhtAmaxSm100 rmsnorm_rht_amax_wrapper_sm100
        """,
    ),
    (
        "a convolution of volumes with what follows it, by a kernel of cudnn-frontend's own",
        "pygraph.conv_fprop takes volumes",
        """
        CausalConv3dWithCacheSm100 Conv3dBiasResidualPadSm100 Conv3dRawSm100 Conv3dRmsNormSiluPadSm100
        Conv3dRmsNormSiluSm100 RmsNormSiluPadSm100 causal_conv3d_with_cache_wrapper_sm100
        conv3d_bias_residual_pad_wrapper_sm100 conv3d_raw_wrapper_sm100 conv3d_rmsnorm_silu_pad_wrapper_sm100
        conv3d_rmsnorm_silu_wrapper_sm100 pack_causal_conv3d_weight_sm100 pack_conv3d_weight_sm100
        rmsnorm_silu_pad_wrapper_sm100
        """,
    ),
    (
        "a rotation by a kernel of cudnn-frontend's own",
        "pygraph.rope rotates rows or their ends",
        """
        RopeQDQInplace TailRoPEForward VisionRoPEBackward rope_qdq_inplace tail_rope
        vision_rope_backward_wrapper
        """,
    ),
    (
        "experts on several GPUs, by kernels of cudnn-frontend's own",
        "pygraph.moe_grouped_matmul has the experts of one GPU",
        """
        BlockScaledTensor MoeEp MoeEpAutotuneCandidateResult MoeEpAutotuneResult MoeEpBackwardWeightStaging
        MoeEpBackwardWeights MoeEpConfig MoeEpDataPathConfig MoeEpFc1WeightLayout MoeEpForwardWeightStaging
        MoeEpForwardWeights MoeEpModelConfig MoeEpNativeBackwardWeights MoeEpNativeDiscreteBackwardWeights
        MoeEpNativeDiscreteForwardWeights MoeEpNativeDiscreteWeight MoeEpNativeForwardWeights MoeEpNativeWeight
        MoeEpNativeWeightLayout MoeEpNativeWeightStorageMode MoeEpParallelConfig MoeEpTrainingBackwardOutputs
        MoeEpTrainingForwardOutputs MoeEpTrainingWgradOperands MoeEpTuningConfig MoeFormat MoeTensor moe_ep
        pack_backward_weights pack_forward_weights
        """,
    ),
    (
        "a network's block, by a kernel of cudnn-frontend's own",
        "write its operations as a graph",
        """
        EngramGateSavedBackward EngramGateSavedForward TriangleMultiplicativeUpdateFwd
        engram_gate_saved_backward engram_gate_saved_forward triangle_multiplicative_update
        """,
    ),
    (
        "an aggregation over the edges of a graph of nodes",
        "",
        """
        gnn gnn_agg_simple_backward gnn_agg_simple_forward gnn_mha_gat_backward gnn_mha_gat_forward
        gnn_mha_gat_v2_backward gnn_mha_gat_v2_forward
        """,
    ),
    (
        "a causal convolution of addresses",
        "pygraph has causal_conv1d and b2b_causal_conv1d, and the C library the functions for addresses",
        """
        b2b_causal_conv1d_backward b2b_causal_conv1d_forward causal_conv1d_backward causal_conv1d_forward
        causal_conv1d_nwh_backward causal_conv1d_nwh_forward fft_causal_conv1d_backward
        fft_causal_conv1d_forward long_fft_causal_conv1d_backward long_fft_causal_conv1d_forward
        long_fft_causal_conv1d_get_buffer_sizes
        """,
    ),
    (
        "a package of operations for PyTorch and JAX",
        "",
        """
        ops experimental torch jax fla
        """,
    ),
)
