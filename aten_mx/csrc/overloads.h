#pragma once

// The overloads, once for C++: schema, signature, rules and CPU kernel of each.
// The schemas are those of aten_mx/overloads.py; a test compares them.

#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/QuantizeMXKernel.h>
#include <ATen/native/quantized/QuantizeMXValidation.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace aten_mx {

using at::ScalarType;
using at::Tensor;

// check raises; run is the CPU kernel of a call that is known to be valid.
struct Quantize {
  template <typename... Arguments>
  static void check(const Arguments&... arguments) {
    at::native::check_quantize_mx(arguments...);
  }

  template <typename... Arguments>
  static auto run(const Tensor& self, const Arguments&... arguments) {
    return at::native::quantize_mx_cpu(
        self, at::native::quantize_mx_call(self, arguments...));
  }
};

struct QuantizeBase : Quantize {
  static constexpr std::string_view schema =
      "quantize_mx(Tensor self, int dim, int block_size, ScalarType dtype, "
      "int scale_calculation_mode=0) -> (Tensor output, Tensor scale)";
  using Signature = std::tuple<Tensor, Tensor>(
      const Tensor&,
      int64_t,
      int64_t,
      ScalarType,
      int64_t);
};

struct QuantizeFormat : Quantize {
  static constexpr std::string_view schema =
      "quantize_mx.format(Tensor self, int dim, int block_size, "
      "str elem_format, int scale_calculation_mode=0, *, int swizzle_type=0) "
      "-> (Tensor output, Tensor scale)";
  using Signature = std::tuple<Tensor, Tensor>(
      const Tensor&,
      int64_t,
      int64_t,
      std::string_view,
      int64_t,
      int64_t);
};

struct DequantizeFormat {
  static constexpr std::string_view schema =
      "dequantize_mx.format(Tensor self, Tensor scale, int dim, "
      "int block_size, str elem_format, ScalarType dtype, *, "
      "int swizzle_type=0) -> Tensor";
  using Signature = Tensor(
      const Tensor&,
      const Tensor&,
      int64_t,
      int64_t,
      std::string_view,
      ScalarType,
      int64_t);

  template <typename... Arguments>
  static void check(const Arguments&... arguments) {
    at::native::check_dequantize_mx(arguments...);
  }

  template <typename... Arguments>
  static Tensor run(
      const Tensor& self,
      const Tensor& scale,
      const Arguments&... arguments) {
    return at::native::dequantize_mx_cpu(
        self, scale, at::native::dequantize_mx_call(self, scale, arguments...));
  }
};

// The payload's dtype tells the format.
struct DequantizeBase {
  static constexpr std::string_view schema =
      "dequantize_mx(Tensor self, Tensor scale, int dim, int block_size, "
      "ScalarType dtype) -> Tensor";
  using Signature =
      Tensor(const Tensor&, const Tensor&, int64_t, int64_t, ScalarType);

  static void check(
      const Tensor& self,
      const Tensor& scale,
      int64_t dim,
      int64_t block_size,
      ScalarType dtype) {
    DequantizeFormat::check(self, scale, dim, block_size, std::nullopt, dtype);
  }

  static Tensor run(
      const Tensor& self,
      const Tensor& scale,
      int64_t dim,
      int64_t block_size,
      ScalarType dtype) {
    return DequantizeFormat::run(
        self, scale, dim, block_size, std::nullopt, dtype);
  }
};

// Calls f with a value of each overload's type.
template <typename Func>
void for_each_overload(Func&& f) {
  f(QuantizeBase{});
  f(QuantizeFormat{});
  f(DequantizeBase{});
  f(DequantizeFormat{});
}

// Such as "quantize_mx.format".
inline std::string name_of(std::string_view schema) {
  return std::string(schema.substr(0, schema.find('(')));
}

// ---- what a schema calls the types of C++ ----------------------------------

template <typename T>
inline constexpr std::string_view kSchemaType = "";
template <>
inline constexpr std::string_view kSchemaType<const Tensor&> = "Tensor";
template <>
inline constexpr std::string_view kSchemaType<int64_t> = "int";
template <>
inline constexpr std::string_view kSchemaType<ScalarType> = "ScalarType";
template <>
inline constexpr std::string_view kSchemaType<std::string_view> = "str";

// Takes the first argument off a list and gives its type.
constexpr std::string_view take_type(std::string_view& arguments) {
  if (arguments.substr(0, 3) == "*, ") {
    arguments.remove_prefix(3);
  }
  const auto type = arguments.substr(0, arguments.find(' '));
  const auto end = arguments.find(", ");
  arguments = end == std::string_view::npos ? "" : arguments.substr(end + 2);
  return type;
}

template <typename Result, typename... Arguments>
constexpr bool fits(
    std::string_view schema,
    Result (* /*signature*/)(Arguments...)) {
  auto rest = schema.substr(schema.find('(') + 1);
  rest = rest.substr(0, rest.find(')'));
  bool same = true;
  ((same = same && take_type(rest) == kSchemaType<Arguments>), ...);
  return same && rest.empty();
}

} // namespace aten_mx
