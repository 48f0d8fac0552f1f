#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/quantized/QuantizeMXValidation.h>

#include <ATen/core/Tensor.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/dequantize_mx_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/quantize_mx_native.h>
#endif

#include <algorithm>
#include <tuple>

// The outputs of a call without values. Sizes may be symbolic.

namespace at::native {

namespace {

Tensor empty_output(
    const Tensor& self,
    MXSizes<c10::SymInt> sizes,
    int64_t dim,
    ScalarType dtype) {
  std::rotate(sizes.begin() + dim, sizes.begin() + dim + 1, sizes.end());
  return at::empty_symint(sizes, self.options().dtype(dtype)).movedim(-1, dim);
}

std::tuple<Tensor, Tensor> quantize_meta(
    const Tensor& self,
    const MXQuantizeCall& call) {
  const auto sizes = self.sym_sizes();
  return {
      empty_output(
          self,
          mx_payload_sizes(sizes, call.dim, *call.format),
          call.dim,
          call.output_dtype),
      empty_output(
          self,
          mx_scale_sizes(sizes, call.dim, call.block_size, call.swizzled),
          call.dim,
          kFloat8_e8m0fnu)};
}

Tensor dequantize_meta(const Tensor& self, const MXDequantizeCall& call) {
  return empty_output(
      self,
      mx_value_sizes(self.sym_sizes(), call.dim, *call.format),
      call.dim,
      call.output_dtype);
}

} // namespace

std::tuple<Tensor, Tensor> quantize_mx_meta(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode) {
  return quantize_meta(
      self,
      describe_quantize_mx(
          self, dim, block_size, dtype, scale_calculation_mode));
}

std::tuple<Tensor, Tensor> quantize_mx_format_meta(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  return quantize_meta(
      self,
      describe_quantize_mx(
          self,
          dim,
          block_size,
          elem_format,
          scale_calculation_mode,
          swizzle_type));
}

Tensor dequantize_mx_meta(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  return dequantize_meta(
      self,
      describe_dequantize_mx(
          self, scale, dim, block_size, std::nullopt, dtype));
}

Tensor dequantize_mx_format_meta(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  return dequantize_meta(
      self,
      describe_dequantize_mx(
          self, scale, dim, block_size, elem_format, dtype, swizzle_type));
}

} // namespace at::native
