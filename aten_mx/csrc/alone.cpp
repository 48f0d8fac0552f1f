// Defines the ops where Python doesn't: a C++ program that loads this library alone can run
// AOTInductor packages of models that quantize. These hold the internal ops (aten_mx/schema.py says
// why there are such): the first two where they were compiled with a kernel for the device, the others
// in the emulated kernel.

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::SymInt;

// Tests hold these texts against schema.py's.
constexpr const char* kSchemas[] = {
    "quantize_mx(Tensor self, int dim, int block_size, ScalarType dtype, "
    "int scale_calculation_mode=0) -> (Tensor output, Tensor scale)",
    "quantize_mx.format(Tensor self, int dim, int block_size, str elem_format, "
    "int scale_calculation_mode=0, *, int swizzle_type=0) -> (Tensor output, Tensor scale)",
    "dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, ScalarType dtype) -> Tensor",
    "dequantize_mx.format(Tensor self, Tensor scale, int dim, int block_size, str elem_format, "
    "ScalarType dtype, *, int swizzle_type=0) -> Tensor",
};
constexpr const char* kInternalQuantize =
    "_quantize_mx(Tensor self, int dim, int block_size, str elem_format, "
    "int scale_calculation_mode, int swizzle_type) -> (Tensor output, Tensor scale)";
constexpr const char* kInternalDequantize =
    "_dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, str elem_format, "
    "ScalarType dtype, int swizzle_type) -> Tensor";
constexpr const char* kBitcast = "_bitcast(Tensor self, ScalarType dtype, int dim) -> Tensor";
constexpr const char* kSwizzle = "_swizzle(Tensor scale) -> Tensor";
constexpr const char* kUnswizzle =
    "_unswizzle(Tensor swizzled, SymInt rows, SymInt columns) -> Tensor";

// A copy of the bytes as `dtype`, dense with `dim` innermost.
Tensor bitcast(const Tensor& self, at::ScalarType dtype, int64_t dim) {
  return self.movedim(dim, -1)
      .clone(at::MemoryFormat::Contiguous)
      .view(dtype)
      .movedim(-1, dim);
}

// A 128x4 tile is 32 rows of 4 groups of 4 columns; aten_mx/layout.py has the layout's source.
std::vector<SymInt> with_tiles(const Tensor& tensor, std::vector<SymInt> last) {
  std::vector<SymInt> shape(tensor.sym_sizes().begin(), tensor.sym_sizes().end() - 2);
  shape.insert(shape.end(), last.begin(), last.end());
  return shape;
}

Tensor swizzle(const Tensor& scale) {
  const int64_t rows = scale.size(-2), columns = scale.size(-1);
  const int64_t row_tiles = (rows + 127) / 128, column_tiles = (columns + 3) / 4;
  return at::constant_pad_nd(
             scale, {0, column_tiles * 4 - columns, 0, row_tiles * 128 - rows})
      .reshape_symint(with_tiles(scale, {row_tiles, 4, 32, column_tiles, 4}))
      .movedim({-5, -2, -3, -4, -1}, {-5, -4, -3, -2, -1})
      .clone(at::MemoryFormat::Contiguous)
      .reshape_symint(with_tiles(scale, {32 * row_tiles, 16 * column_tiles}));
}

Tensor unswizzle(const Tensor& swizzled, SymInt rows, SymInt columns) {
  const auto row_tiles = (rows + 127) / 128, column_tiles = (columns + 3) / 4;
  return swizzled.reshape_symint(with_tiles(swizzled, {row_tiles, column_tiles, 32, 4, 4}))
      .movedim({-5, -4, -3, -2, -1}, {-5, -2, -3, -4, -1})
      .reshape_symint(with_tiles(swizzled, {row_tiles * 128, column_tiles * 4}))
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
  using Signature = std::tuple<Tensor, Tensor>(
      const Tensor&, int64_t, int64_t, std::string_view, int64_t, int64_t);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten_mx::quantize_mx", "format")
                             .typed<Signature>();
  return op.call(self, dim, block_size, elem_format, mode, swizzle_type);
}

Tensor dequantize(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    at::ScalarType dtype,
    int64_t swizzle_type) {
  using Signature = Tensor(
      const Tensor&, const Tensor&, int64_t, int64_t, std::string_view, at::ScalarType, int64_t);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten_mx::dequantize_mx", "format")
                             .typed<Signature>();
  return op.call(self, scale, dim, block_size, elem_format, dtype, swizzle_type);
}

std::string name_of(std::string_view schema) {
  return std::string(schema.substr(0, schema.find('(')));
}

struct DefineIfAlone {
  DefineIfAlone() {
    if (c10::Dispatcher::singleton().findSchema({"aten_mx::quantize_mx", ""})) {
      return; // by Python, before it loaded this library
    }
    using Library = torch::Library;
    static Library ops(Library::DEF, "aten_mx", std::nullopt, __FILE__, __LINE__);
    static Library kernels(
        Library::IMPL,
        "aten_mx",
        c10::DispatchKey::CompositeExplicitAutograd,
        __FILE__,
        __LINE__);
    static Library autograd(
        Library::IMPL, "aten_mx", c10::DispatchKey::Autograd, __FILE__, __LINE__);
    for (const char* schema : kSchemas) {
      ops.def(schema);
      // Not differentiable: outputs never require grad.
      autograd.impl(name_of(schema).c_str(), torch::CppFunction::makeFallthrough());
    }
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
