"""Kernel names as an H200 (torch 2.11, cuBLAS 13, cuDNN 9.19) and older cards showed them."""

import pytest

from mpx.precision.kernels import classify, sums_in_fp16

# format (?: the name does not show it), whether on Tensor Cores, name
TABLE = """
fp16     cores  nvjet_sm90_hsh_128x128_64x6_2x1_v_bz_bias_TNT
bf16     cores  nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT
fp8_e4m3 cores  nvjet_sm90_qqtst_128x64_128x8_1x2_h_bz_algo2_TNT
tf32     cores  sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1
fp32     plain  sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4
fp16     cores  sm90_xmma_fprop_image_first_layer_f16f16_f32_f16_nhwckrsc_nhwc_hmma_k64c4r7s7_stride2x2
bf16     cores  sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x64
tf32     cores  sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x32
tf32     cores  void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(cutlass_80_tensorop_
fp16     cores  void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32_128x2_tn_align2>(cutl
bf16     cores  void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align2>(cu
bf16     cores  void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nh
tf32     cores  void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x64
fp32     plain  void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(cutlass_80_simt_sgemm_64x64
fp32     plain  void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int, in
fp16     plain  void precomputed_convolve_sgemm<__half, 128, 6, 7, 3, 3, 5, 1, false>(int, int, int, __half co
bf16     plain  void precomputed_convolve_sgemm<__nv_bfloat16, 128, 6, 7, 3, 3, 5, 1, false>(int, int, int
fp32     plain  void wgrad_alg0_engine_NHWC<float, 128, 5, 5, 3, 3, 3, false, 512>(int, int, int, float const*
fp32     plain  void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*
fp32     plain  void RNN_blockPersist_fp_LSTM<float, float, float, 128>(float const*, float const*
fp16     cores  void RNN_blockPersist_bp_LSTM_HMMA<__half, __half, float, 32>(block_bp_args
fp32     cores  fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float
?        cores  cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1
fp16     cores  void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>
bf16     cores  void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>
fp32     plain  std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, fl
fp16     plain  void gemmk1_kernel<int, __half, 256, 5, false, false, false, false, cublasGemvTensorStridedBat
fp32     plain  volta_sgemm_128x64_tn
fp16     cores  volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn
fp16     cores  turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn
fp16     cores  ampere_fp16_s16816gemm_fp16_128x64_ldg8_stages_64x4_tn
bf16     cores  ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn
fp32     plain  ampere_sgemm_128x64_nn
-        helper void elemWiseRNNcell<__half, __half, float, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>(int
-        helper void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>
-        helper void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half>
-        helper something_nobody_has_seen
"""
CASES = [line.split(maxsplit=2) for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("fmt", "on", "name"), CASES, ids=[name[:50] for *_, name in CASES])
def test_classify(fmt, on, name):
    expected = None if on == "helper" else (None if fmt == "?" else fmt, on == "cores")
    assert classify(name) == expected


def test_accumulators_in_fp16():
    assert sums_in_fp16("nvjet_sm90_hhh_128x128_64x6_2x1")
    assert sums_in_fp16("ampere_h16816gemm_128x64_ldg8_stages_64x4_tn")
    assert not any(sums_in_fp16(name) for *_, name in CASES)
