#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/quantized/QuantizeMX.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/empty.h>
#endif

#include <cstring>
#include <sstream>
#include <string>

namespace at::native {

DEFINE_DISPATCH(quantize_mx_stub);
DEFINE_DISPATCH(dequantize_mx_stub);

namespace {

constexpr std::array<ScalarType, 3> kRealDtypes{
    ScalarType::Float,
    ScalarType::BFloat16,
    ScalarType::Half};

// As Python prints it, because the Python kernels raise the same texts.
std::string dtype_name(ScalarType dtype) {
  return "torch." + std::string(c10::getDtypeNames(dtype).first);
}

std::string layout_name(Layout layout) {
  switch (layout) {
    case kSparse:
      return "torch.sparse_coo";
    case kMkldnn:
      return "torch._mkldnn";
    case kSparseCsr:
      return "torch.sparse_csr";
    case kSparseCsc:
      return "torch.sparse_csc";
    case kSparseBsr:
      return "torch.sparse_bsr";
    case kSparseBsc:
      return "torch.sparse_bsc";
    default: {
      std::ostringstream name;
      name << "torch." << layout;
      return name.str();
    }
  }
}

std::string alternatives(ArrayRef<ScalarType> dtypes) {
  std::string text;
  for (const auto i : c10::irange(dtypes.size())) {
    if (i > 0) {
      text += i + 1 == dtypes.size() ? " or " : ", ";
    }
    text += dtype_name(dtypes[i]);
  }
  return text;
}

// Dtypes of the formats that have one, in the table's order.
std::string element_dtypes() {
  c10::SmallVector<ScalarType, 6> dtypes;
  for (const auto& format : kMXFormats) {
    if (format.dtype != ScalarType::Undefined) {
      dtypes.push_back(format.dtype);
    }
  }
  return alternatives(dtypes);
}

bool is_real(ScalarType dtype) {
  return std::find(kRealDtypes.begin(), kRealDtypes.end(), dtype) !=
      kRealDtypes.end();
}

const MXFormat* find_format(ScalarType dtype) {
  for (const auto& format : kMXFormats) {
    if (format.dtype == dtype && dtype != ScalarType::Undefined) {
      return &format;
    }
  }
  return nullptr;
}

void check_dense(const char* op, const char* name, const Tensor& tensor) {
  std::string kind;
  if (!tensor.defined()) {
    kind = "None";
  } else if (tensor.is_nested()) {
    kind = "a nested tensor";
  } else if (tensor.layout() != kStrided) {
    kind = "layout " + layout_name(tensor.layout());
  } else if (tensor.is_quantized()) {
    kind = "a quantized tensor of dtype " + dtype_name(tensor.scalar_type());
  }
  TORCH_CHECK_TYPE(
      kind.empty(),
      op,
      ": ",
      name,
      " must be a dense strided tensor, got ",
      kind);
}

int64_t check_dim(const char* op, int64_t dim, IntArrayRef sizes) {
  const auto rank = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_INDEX(
      rank > 0, op, ": self must have at least one dimension, got shape []");
  TORCH_CHECK_INDEX(
      -rank <= dim && dim < rank,
      op,
      ": dim must be in [",
      -rank,
      ", ",
      rank - 1,
      "] for a tensor of rank ",
      rank,
      ", got ",
      dim);
  return dim < 0 ? dim + rank : dim;
}

const MXFormat* check_format_name(const char* op, std::string_view name) {
  std::string known;
  for (const auto& format : kMXFormats) {
    if (format.name == name) {
      return &format;
    }
    known += known.empty() ? "" : ", ";
    known += format.name;
  }
  TORCH_CHECK_VALUE(
      false, op, ": elem_format must be one of ", known, ", got ", name);
}

void check_swizzle_type(const char* op, int64_t swizzle_type) {
  TORCH_CHECK_VALUE(
      swizzle_type == kMXSwizzleNone || swizzle_type == kMXSwizzle32x4x4,
      op,
      ": swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got ",
      swizzle_type);
}

void check_block_size(
    const char* op,
    int64_t block_size,
    const MXFormat* format) {
  TORCH_CHECK_VALUE(
      block_size >= 1,
      op,
      ": block_size must be at least 1, got ",
      block_size);
  TORCH_CHECK_VALUE(
      format == nullptr || block_size % format->codes_per_byte() == 0,
      op,
      ": block_size must be even for ",
      format->name,
      " (two codes a byte), got ",
      block_size);
}

void check_multiple(
    const char* op,
    IntArrayRef sizes,
    int64_t dim,
    int64_t block_size,
    int64_t size) {
  TORCH_CHECK_VALUE(
      size % block_size == 0,
      op,
      ": size ",
      size,
      " of dim ",
      dim,
      " must be a multiple of block_size ",
      block_size,
      ", got shape ",
      sizes);
}

void check_swizzle(
    const char* op,
    int64_t swizzle_type,
    IntArrayRef sizes,
    int64_t dim,
    int64_t block_size) {
  if (swizzle_type == kMXSwizzleNone) {
    return;
  }
  const auto rank = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_VALUE(
      rank >= 2,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs rank 2 or more, got ",
      rank);
  TORCH_CHECK_VALUE(
      dim == rank - 1,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs the last dim, got dim ",
      dim);
  TORCH_CHECK_VALUE(
      block_size == kMXSwizzleBlockSize,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs block_size ",
      kMXSwizzleBlockSize,
      ", got ",
      block_size);
}

int64_t ceil_div(int64_t numerator, int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

MXSizes scale_sizes(
    IntArrayRef sizes,
    int64_t dim,
    int64_t block_size,
    int64_t swizzle_type) {
  MXSizes result(sizes.begin(), sizes.end());
  result[dim] /= block_size;
  if (swizzle_type == kMXSwizzle32x4x4) {
    const auto rank = result.size();
    result[rank - 2] =
        (kMXTileRows / 4) * ceil_div(result[rank - 2], kMXTileRows);
    result[rank - 1] =
        (4 * kMXTileColumns) * ceil_div(result[rank - 1], kMXTileColumns);
  }
  return result;
}

const MXFormat* check_payload_dtype(
    const char* op,
    ScalarType dtype,
    const MXFormat* format,
    std::optional<std::string_view> elem_format) {
  TORCH_CHECK_TYPE(
      format != nullptr,
      op,
      ": self must be ",
      element_dtypes(),
      ", got ",
      dtype_name(dtype),
      dtype == ScalarType::Byte
          ? "; raw bytes need elem_format (dequantize_mx.format)"
          : "");
  c10::SmallVector<ScalarType, 2> accepted{format->payload_dtype()};
  if (format->dtype != ScalarType::Undefined &&
      format->dtype != accepted.front()) {
    accepted.push_back(format->dtype);
  }
  TORCH_CHECK_TYPE(
      !elem_format ||
          std::find(accepted.begin(), accepted.end(), dtype) != accepted.end(),
      op,
      ": self must be ",
      alternatives(accepted),
      " for ",
      format->name,
      ", got ",
      dtype_name(dtype));
  return format;
}

void check_scale_dtype(const char* op, const Tensor& scale) {
  check_dense(op, "scale", scale);
  TORCH_CHECK_TYPE(
      scale.scalar_type() == ScalarType::Float8_e8m0fnu,
      op,
      ": scale must be torch.float8_e8m0fnu, got ",
      dtype_name(scale.scalar_type()),
      scale.scalar_type() == ScalarType::Byte
          ? "; view it: scale.view(torch.float8_e8m0fnu)"
          : "");
}

MXSizes with_dim_last(IntArrayRef sizes, int64_t dim) {
  MXSizes moved(sizes.begin(), sizes.end());
  std::rotate(moved.begin() + dim, moved.begin() + dim + 1, moved.end());
  return moved;
}

Tensor with_dim_at(const Tensor& moved, int64_t dim) {
  return dim == moved.dim() - 1 ? moved : moved.movedim(-1, dim);
}

Tensor empty_output(
    const Tensor& self,
    IntArrayRef sizes,
    int64_t dim,
    ScalarType dtype) {
  const auto options = self.options().dtype(dtype);
  return with_dim_at(at::empty(with_dim_last(sizes, dim), options), dim);
}

std::tuple<Tensor, Tensor> quantize_cpu(
    const Tensor& self,
    const MXQuantizeCall& call,
    int64_t block_size,
    int64_t swizzle_type) {
  const bool swizzled = swizzle_type != kMXSwizzleNone;
  auto output =
      empty_output(self, call.output_sizes, call.dim, call.output_dtype);
  auto scale = empty_output(
      self, call.scale_sizes, call.dim, ScalarType::Float8_e8m0fnu);
  if (swizzled && scale.numel() > 0) {
    // The padding is part of the contract, and the kernel writes no byte of it.
    std::memset(scale.mutable_data_ptr(), 0, scale.nbytes());
  }
  if (output.numel() > 0) {
    quantize_mx_stub(
        kCPU,
        output,
        scale,
        self.resolve_neg(),
        *call.format,
        call.mode,
        call.dim,
        block_size,
        swizzled);
  }
  return {std::move(output), std::move(scale)};
}

Tensor dequantize_cpu(
    const Tensor& self,
    const Tensor& scale,
    const MXDequantizeCall& call,
    int64_t block_size,
    int64_t swizzle_type) {
  auto output =
      empty_output(self, call.output_sizes, call.dim, call.output_dtype);
  if (output.numel() > 0) {
    dequantize_mx_stub(
        kCPU,
        output,
        self,
        scale,
        *call.format,
        call.dim,
        block_size,
        swizzle_type != kMXSwizzleNone);
  }
  return output;
}

} // namespace

MXQuantizeCall describe_quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::optional<ScalarType> dtype,
    std::optional<std::string_view> elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  constexpr auto op = "quantize_mx";
  check_dense(op, "self", self);
  TORCH_CHECK_TYPE(
      is_real(self.scalar_type()),
      op,
      ": self must be ",
      alternatives(kRealDtypes),
      ", got ",
      dtype_name(self.scalar_type()));
  const auto sizes = self.sizes();
  dim = check_dim(op, dim, sizes);
  const auto* format = elem_format ? check_format_name(op, *elem_format)
                                   : find_format(*dtype);
  TORCH_CHECK_TYPE(
      format != nullptr,
      op,
      ": dtype must be ",
      element_dtypes(),
      ", got ",
      dtype_name(*dtype));
  TORCH_CHECK_VALUE(
      0 <= scale_calculation_mode && scale_calculation_mode <= 3,
      op,
      ": scale_calculation_mode must be one of 0 (floor), 1 (ceil), 2 (even), "
      "3 (rceil), got ",
      scale_calculation_mode);
  check_swizzle_type(op, swizzle_type);
  check_block_size(op, block_size, format);
  check_multiple(op, sizes, dim, block_size, sizes[dim]);
  check_swizzle(op, swizzle_type, sizes, dim, block_size);

  MXSizes output_sizes(sizes.begin(), sizes.end());
  output_sizes[dim] /= format->codes_per_byte();
  return {
      format,
      dim,
      static_cast<MXScaleMode>(scale_calculation_mode),
      std::move(output_sizes),
      scale_sizes(sizes, dim, block_size, swizzle_type),
      elem_format ? format->payload_dtype() : *dtype};
}

MXDequantizeCall describe_dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  constexpr auto op = "dequantize_mx";
  check_dense(op, "self", self);
  MXSizes sizes(self.sizes().begin(), self.sizes().end());
  dim = check_dim(op, dim, sizes);
  const auto* format = elem_format ? check_format_name(op, *elem_format)
                                   : find_format(self.scalar_type());
  TORCH_CHECK_TYPE(
      is_real(dtype),
      op,
      ": dtype must be ",
      alternatives(kRealDtypes),
      ", got ",
      dtype_name(dtype));
  check_swizzle_type(op, swizzle_type);
  check_block_size(op, block_size, format);
  // Without a format the payload's dtype is at fault, which is said below.
  if (format != nullptr) {
    const auto codes = sizes[dim] * format->codes_per_byte();
    check_multiple(op, sizes, dim, block_size, codes);
    sizes[dim] = codes;
  }
  check_swizzle(op, swizzle_type, sizes, dim, block_size);
  format = check_payload_dtype(op, self.scalar_type(), format, elem_format);
  check_scale_dtype(op, scale);
  const auto expected = scale_sizes(sizes, dim, block_size, swizzle_type);
  TORCH_CHECK_VALUE(
      scale.sizes() == IntArrayRef(expected),
      op,
      ": scale must have shape ",
      IntArrayRef(expected),
      " for values of shape ",
      IntArrayRef(sizes),
      " and block_size ",
      block_size,
      ", got ",
      scale.sizes());
  TORCH_CHECK(
      scale.device() == self.device(),
      op,
      ": self and scale must be on one device, got ",
      self.device(),
      " and ",
      scale.device());
  return {format, dim, std::move(sizes), dtype};
}

std::tuple<Tensor, Tensor> quantize_mx_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode) {
  const auto call = describe_quantize_mx(
      self,
      dim,
      block_size,
      dtype,
      std::nullopt,
      scale_calculation_mode,
      kMXSwizzleNone);
  return quantize_cpu(self, call, block_size, kMXSwizzleNone);
}

std::tuple<Tensor, Tensor> quantize_mx_format_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  const auto call = describe_quantize_mx(
      self,
      dim,
      block_size,
      std::nullopt,
      elem_format,
      scale_calculation_mode,
      swizzle_type);
  return quantize_cpu(self, call, block_size, swizzle_type);
}

Tensor dequantize_mx_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  const auto call = describe_dequantize_mx(
      self, scale, dim, block_size, std::nullopt, dtype, kMXSwizzleNone);
  return dequantize_cpu(self, scale, call, block_size, kMXSwizzleNone);
}

Tensor dequantize_mx_format_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  const auto call = describe_dequantize_mx(
      self, scale, dim, block_size, elem_format, dtype, swizzle_type);
  return dequantize_cpu(self, scale, call, block_size, swizzle_type);
}

} // namespace at::native
