// Defines the ops where Python does not. So a C++ program that loads this
// library alone can run AOTInductor packages of models that quantize. Such
// packages hold the internal ops, which aten_mx/schema.py explains: the first
// two where the device had a kernel when the package was made, the others as
// parts of the emulated kernel.

#include "overloads.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <vector>

namespace aten_mx {
namespace {

using c10::SymInt;

// Tests hold these texts against schema.py's.
constexpr const char* kInternalQuantize =
    "_quantize_mx(Tensor self, int dim, int block_size, str elem_format, "
    "int scale_calculation_mode, int swizzle_type) "
    "-> (Tensor output, Tensor scale)";
constexpr const char* kInternalDequantize =
    "_dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, "
    "str elem_format, ScalarType dtype, int swizzle_type) -> Tensor";
constexpr const char* kBitcast =
    "_bitcast(Tensor self, ScalarType dtype, int dim) -> Tensor";
constexpr const char* kSwizzle = "_swizzle(Tensor scale) -> Tensor";
constexpr const char* kUnswizzle =
    "_unswizzle(Tensor swizzled, SymInt rows, SymInt columns) -> Tensor";

// A copy of the bytes as `dtype`, dense with `dim` innermost.
Tensor bitcast(const Tensor& self, ScalarType dtype, int64_t dim) {
  return self.movedim(dim, -1)
      .clone(at::MemoryFormat::Contiguous)
      .view(dtype)
      .movedim(-1, dim);
}

// A 128x4 tile is 32 rows of 4 groups of 4 columns; aten_mx/layout.py has the
// layout's source.
std::vector<SymInt> with_tiles(const Tensor& tensor, std::vector<SymInt> last) {
  std::vector<SymInt> shape(
      tensor.sym_sizes().begin(), tensor.sym_sizes().end() - 2);
  shape.insert(shape.end(), last.begin(), last.end());
  return shape;
}

Tensor swizzle(const Tensor& scale) {
  using namespace at::native;
  const int64_t rows = scale.size(-2), columns = scale.size(-1);
  const int64_t row_tiles = mx_ceil_div(rows, kMXTileRows);
  const int64_t column_tiles = mx_ceil_div(columns, kMXTileColumns);
  const std::array<int64_t, 4> padding{
      0,
      column_tiles * kMXTileColumns - columns,
      0,
      row_tiles * kMXTileRows - rows};
  return at::constant_pad_nd(scale, padding)
      .reshape_symint(with_tiles(
          scale,
          {row_tiles,
           kMXTileGroups,
           kMXGroupRows,
           column_tiles,
           kMXTileColumns}))
      .movedim({-5, -2, -3, -4, -1}, {-5, -4, -3, -2, -1})
      .clone(at::MemoryFormat::Contiguous)
      .reshape_symint(with_tiles(
          scale,
          {kMXGroupRows * row_tiles,
           kMXTileGroups * kMXTileColumns * column_tiles}));
}

Tensor unswizzle(const Tensor& swizzled, SymInt rows, SymInt columns) {
  using namespace at::native;
  const auto row_tiles = mx_ceil_div(rows, kMXTileRows);
  const auto column_tiles = mx_ceil_div(columns, kMXTileColumns);
  return swizzled
      .reshape_symint(with_tiles(
          swizzled,
          {row_tiles,
           column_tiles,
           kMXGroupRows,
           kMXTileGroups,
           kMXTileColumns}))
      .movedim({-5, -4, -3, -2, -1}, {-5, -2, -3, -4, -1})
      .reshape_symint(with_tiles(
          swizzled, {row_tiles * kMXTileRows, column_tiles * kMXTileColumns}))
      .slice_symint(-2, 0, rows)
      .slice_symint(-1, 0, columns)
      .clone(at::MemoryFormat::Contiguous);
}

std::tuple<Tensor, Tensor> quantize(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t mode,
    int64_t swizzle_type) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("aten_mx::quantize_mx", "format")
          .typed<QuantizeFormat::Signature>();
  return op.call(self, dim, block_size, elem_format, mode, swizzle_type);
}

Tensor dequantize(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("aten_mx::dequantize_mx", "format")
          .typed<DequantizeFormat::Signature>();
  return op.call(
      self, scale, dim, block_size, elem_format, dtype, swizzle_type);
}

struct DefineIfAlone {
  DefineIfAlone() {
    if (c10::Dispatcher::singleton().findSchema({"aten_mx::quantize_mx", ""})) {
      return; // by Python, before it loaded this library
    }
    using Library = torch::Library;
    static Library ops(
        Library::DEF, "aten_mx", std::nullopt, __FILE__, __LINE__);
    static Library kernels(
        Library::IMPL,
        "aten_mx",
        c10::DispatchKey::CompositeExplicitAutograd,
        __FILE__,
        __LINE__);
    static Library autograd(
        Library::IMPL,
        "aten_mx",
        c10::DispatchKey::Autograd,
        __FILE__,
        __LINE__);
    for_each_overload([&](auto overload) {
      ops.def(std::string(overload.schema).c_str());
      // Not differentiable: outputs never require grad.
      autograd.impl(
          name_of(overload.schema).c_str(),
          torch::CppFunction::makeFallthrough());
    });
    ops.def(kInternalQuantize);
    ops.def(kInternalDequantize);
    ops.def(kBitcast);
    ops.def(kSwizzle);
    ops.def(kUnswizzle);
    kernels.impl("_quantize_mx", TORCH_FN(quantize));
    kernels.impl("_dequantize_mx", TORCH_FN(dequantize));
    kernels.impl("_bitcast", TORCH_FN(bitcast));
    kernels.impl("_swizzle", TORCH_FN(swizzle));
    kernels.impl("_unswizzle", TORCH_FN(unswizzle));
  }
};
const DefineIfAlone define_if_alone;

} // namespace
} // namespace aten_mx
