#pragma once

// Names in the texts of errors, as Python prints them.

#include <ATen/native/quantized/QuantizeMX.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>

#include <sstream>
#include <string>

namespace at::native {
namespace {

inline std::string dtype_name(ScalarType dtype) {
  return "torch." + std::string(c10::getDtypeNames(dtype).first);
}

inline std::string layout_name(Layout layout) {
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

inline std::string alternatives(ArrayRef<ScalarType> dtypes) {
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
inline std::string element_dtypes() {
  c10::SmallVector<ScalarType, kMXFormats.size()> dtypes;
  for (const auto& format : kMXFormats) {
    if (format.has_dtype()) {
      dtypes.push_back(format.dtype);
    }
  }
  return alternatives(dtypes);
}

inline std::string format_names() {
  std::string names;
  for (const auto& format : kMXFormats) {
    names += names.empty() ? "" : ", ";
    names += format.name;
  }
  return names;
}

inline std::string mode_names() {
  std::string names;
  for (const auto& mode : kMXScaleModes) {
    names += names.empty() ? "" : ", ";
    names += std::to_string(mode.value) + " (" + std::string(mode.name) + ")";
  }
  return names;
}

} // namespace
} // namespace at::native
