#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/QuantizeMXKernel.h>

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>

namespace at::native {

DEFINE_DISPATCH(quantize_mx_stub);
DEFINE_DISPATCH(dequantize_mx_stub);

namespace {

// Not at::empty: under torch.use_deterministic_algorithms(True) that fills the
// tensor, which float4_e2m1fn_x2 does not support. Each byte is written here.
Tensor empty_output(MXSizes<int64_t> sizes, int64_t dim, ScalarType dtype) {
  std::rotate(sizes.begin() + dim, sizes.begin() + dim + 1, sizes.end());
  Tensor moved = at::detail::empty_cpu(sizes, dtype);
  return dim == moved.dim() - 1 ? moved : moved.movedim(-1, dim);
}

} // namespace

std::tuple<Tensor, Tensor> quantize_mx_cpu(
    const Tensor& self,
    const MXQuantizeCall& call) {
  const auto sizes = self.sizes();
  auto output = empty_output(
      mx_payload_sizes(sizes, call.dim, *call.format),
      call.dim,
      call.output_dtype);
  auto scale = empty_output(
      mx_scale_sizes(sizes, call.dim, call.block_size, call.swizzled),
      call.dim,
      ScalarType::Float8_e8m0fnu);
  if (call.swizzled && scale.numel() > 0) {
    // The padding must be zero (specification.md, 5), and the kernel writes no
    // byte of it.
    std::memset(scale.mutable_data_ptr(), 0, scale.nbytes());
  }
  if (output.numel() > 0) {
    quantize_mx_stub(
        kCPU,
        output,
        scale,
        self.resolve_neg(),
        *call.format,
        *call.mode,
        call.dim,
        call.block_size,
        call.swizzled);
  }
  return {std::move(output), std::move(scale)};
}

Tensor dequantize_mx_cpu(
    const Tensor& self,
    const Tensor& scale,
    const MXDequantizeCall& call) {
  auto output = empty_output(
      mx_value_sizes(self.sizes(), call.dim, *call.format),
      call.dim,
      call.output_dtype);
  if (output.numel() > 0) {
    dequantize_mx_stub(
        kCPU,
        output,
        self,
        scale,
        *call.format,
        call.dim,
        call.block_size,
        call.swizzled);
  }
  return output;
}

std::tuple<Tensor, Tensor> quantize_mx_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode) {
  return quantize_mx_cpu(
      self,
      describe_quantize_mx(
          self, dim, block_size, dtype, scale_calculation_mode));
}

std::tuple<Tensor, Tensor> quantize_mx_format_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  return quantize_mx_cpu(
      self,
      describe_quantize_mx(
          self,
          dim,
          block_size,
          elem_format,
          scale_calculation_mode,
          swizzle_type));
}

Tensor dequantize_mx_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  return dequantize_mx_cpu(
      self,
      scale,
      describe_dequantize_mx(
          self, scale, dim, block_size, std::nullopt, dtype));
}

Tensor dequantize_mx_format_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  return dequantize_mx_cpu(
      self,
      scale,
      describe_dequantize_mx(
          self, scale, dim, block_size, elem_format, dtype, swizzle_type));
}

} // namespace at::native
