#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/quantized/QuantizeMXValidation.h>

#include <cstdint>
#include <tuple>

namespace at::native {

// Allocate the outputs of a valid call and run the kernel.
TORCH_API std::tuple<Tensor, Tensor> quantize_mx_cpu(
    const Tensor& self,
    const MXQuantizeCall& call);

TORCH_API Tensor dequantize_mx_cpu(
    const Tensor& self,
    const Tensor& scale,
    const MXDequantizeCall& call);

// The kernels see bytes: payload and scale as uint8, dim counted from the
// front. A swizzled scale that is written has its padding zeroed before.
using quantize_mx_fn = void (*)(
    const Tensor& payload,
    const Tensor& scale,
    const Tensor& input,
    const MXFormat& format,
    const MXScaleMode& mode,
    int64_t dim,
    int64_t block_size,
    bool swizzled);

using dequantize_mx_fn = void (*)(
    const Tensor& output,
    const Tensor& payload,
    const Tensor& scale,
    const MXFormat& format,
    int64_t dim,
    int64_t block_size,
    bool swizzled);

DECLARE_DISPATCH(quantize_mx_fn, quantize_mx_stub)
DECLARE_DISPATCH(dequantize_mx_fn, dequantize_mx_stub)

} // namespace at::native
