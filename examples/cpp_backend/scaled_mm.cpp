// The matrix multiply of MX operands for the device: what TorchAO's MX linear calls after
// quantize_mx. `torch._scaled_mm` is the older op, which tells the recipe by the scales' dtype;
// `torch.nn.functional.scaled_mm` calls `_scaled_mm_v2`, which names it.
//
// It has two steps, both the device's own: the kernel of `aten_mx::dequantize_mx` (kernels.cpp),
// found by its name, and a plain loop that sums in float32.

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/BlasBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using at::blas::ScalingType;
using at::blas::SwizzleType;

std::atomic<std::int64_t> calls{0};
std::atomic<std::int64_t> v2_calls{0};

constexpr std::int64_t kBlock = 32;  // elements that share a scale
constexpr std::int64_t kTileRows = 128, kTileColumns = 4, kGroup = 32;

std::int64_t tiles(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

// Takes the scales of `rows` rows out of their 128x4 tiles; the padding is not read.
Tensor unswizzle(const Tensor& swizzled, std::int64_t rows, std::int64_t columns) {
  const std::int64_t row_tiles = tiles(rows, kTileRows), column_tiles = tiles(columns, kTileColumns);
  TORCH_CHECK_VALUE(
      swizzled.scalar_type() == at::kFloat8_e8m0fnu && swizzled.is_contiguous() &&
          swizzled.numel() == row_tiles * column_tiles * kTileRows * kTileColumns,
      "scaled_mm: a swizzled scale of ", rows, " rows and ", columns, " columns must be contiguous "
      "float8_e8m0fnu of ", row_tiles, " x ", column_tiles, " tiles, got ", swizzled.scalar_type(),
      " of shape ", swizzled.sizes());
  const Tensor scale = at::empty({rows, columns}, swizzled.options());
  const auto* from = static_cast<const std::uint8_t*>(swizzled.const_data_ptr());
  auto* to = static_cast<std::uint8_t*>(scale.mutable_data_ptr());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t tile = row / kTileRows * column_tiles + column / kTileColumns;
      const std::int64_t r = row % kTileRows, c = column % kTileColumns;
      const std::int64_t in_tile = r % kGroup * 16 + r / kGroup * kTileColumns + c;
      *to++ = from[tile * kTileRows * kTileColumns + in_tile];
    }
  }
  return scale;
}

// The numbers of an operand whose rows are contiguous, as float32.
Tensor dequantize(const Tensor& payload, const Tensor& scale) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("aten_mx::dequantize_mx", "")
          .typed<Tensor(const Tensor&, const Tensor&, std::int64_t, std::int64_t, at::ScalarType)>();
  TORCH_CHECK_VALUE(
      payload.dim() == 2 && payload.is_contiguous(), "scaled_mm: both operands must have their "
      "contraction dimension contiguous, got strides ", payload.strides());
  const std::int64_t codes_per_byte = payload.scalar_type() == at::kFloat4_e2m1fn_x2 ? 2 : 1;
  const std::int64_t columns = payload.size(1) * codes_per_byte / kBlock;
  return op.call(payload, unswizzle(scale, payload.size(0), columns), 1, kBlock, at::kFloat);
}

Tensor multiply(
    const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
    const std::optional<Tensor>& bias, std::optional<at::ScalarType> out_dtype) {
  const Tensor a = dequantize(self, scale_a), b = dequantize(mat2.t(), scale_b);
  const std::int64_t rows = a.size(0), columns = b.size(0), depth = a.size(1);
  TORCH_CHECK_VALUE(
      b.size(1) == depth, "scaled_mm: got shapes ", self.sizes(), " and ", mat2.sizes());
  const Tensor product = at::empty({rows, columns}, a.options());
  const auto *left = a.const_data_ptr<float>(), *right = b.const_data_ptr<float>();
  auto* out = product.mutable_data_ptr<float>();
  const Tensor added = bias ? bias->to(at::kFloat).contiguous() : Tensor();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        sum += left[row * depth + k] * right[column * depth + k];
      }
      *out++ = bias ? sum + added.const_data_ptr<float>()[column] : sum;
    }
  }
  return product.to(out_dtype.value_or(self.scalar_type()));
}

Tensor scaled_mm(
    const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& scale_result,
    std::optional<at::ScalarType> out_dtype, bool) {
  ++calls;
  return multiply(self, mat2, scale_a, scale_b, bias, out_dtype);
}

// A kernel's C++ signature must be that of PyTorch's own, which 2.14 changed.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
using TensorList = at::TensorList;
#else
using TensorList = const at::ITensorListRef&;
#endif

Tensor scaled_mm_v2(
    const Tensor& self, const Tensor& mat2, TensorList scale_a, at::IntArrayRef recipe_a,
    at::IntArrayRef swizzle_a, TensorList scale_b, at::IntArrayRef recipe_b,
    at::IntArrayRef swizzle_b, const std::optional<Tensor>& bias,
    std::optional<at::ScalarType> out_dtype, at::IntArrayRef, bool) {
  ++v2_calls;
  const std::vector<std::int64_t> mx{std::int64_t(ScalingType::BlockWise1x32)};
  const std::vector<std::int64_t> tiled{std::int64_t(SwizzleType::SWIZZLE_32_4_4)};
  TORCH_CHECK_VALUE(
      recipe_a == at::IntArrayRef(mx) && recipe_b == at::IntArrayRef(mx) &&
          swizzle_a == at::IntArrayRef(tiled) && swizzle_b == at::IntArrayRef(tiled),
      "scaled_mm: this device knows BlockWise1x32 with swizzled scales, got recipes ", recipe_a,
      " and ", recipe_b, ", swizzles ", swizzle_a, " and ", swizzle_b);
  return multiply(self, mat2, scale_a.front(), scale_b.front(), bias, out_dtype);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_mm", &scaled_mm);
  m.impl("_scaled_mm_v2", &scaled_mm_v2);
}

}  // namespace

// How often each kernel ran.
extern "C" std::int64_t scaled_mm_calls() { return calls; }
extern "C" std::int64_t scaled_mm_v2_calls() { return v2_calls; }
