#pragma once

// The rules that every call must keep. Sizes may be symbolic.

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/QuantizeMXCall.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace at::native {

// Raise the first fault in the order of specification.md, 6.
TORCH_API void check_quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    MXElement element,
    int64_t scale_calculation_mode,
    int64_t swizzle_type = kMXSwizzleNone);

// Without elem_format the payload's dtype tells the format.
TORCH_API void check_dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type = kMXSwizzleNone);

// Validates a call and describes it, for a kernel that nothing validates
// before.
template <typename... Arguments>
MXQuantizeCall describe_quantize_mx(const Arguments&... arguments) {
  check_quantize_mx(arguments...);
  return quantize_mx_call(arguments...);
}

template <typename... Arguments>
MXDequantizeCall describe_dequantize_mx(const Arguments&... arguments) {
  check_dequantize_mx(arguments...);
  return dequantize_mx_call(arguments...);
}

} // namespace at::native
