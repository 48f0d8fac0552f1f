#pragma once

// Included by QuantizeMXKernel.cpp alone: dequantization in Lanes, for any
// block size, stride, format and instruction set.

#include <ATen/native/cpu/DequantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXGroup.h>

namespace at::native {
namespace {

struct DequantizeJob {
  void* output;
  const uint8_t* payload;
  const uint8_t* scale;
  int64_t blocks_per_row;
  int64_t block_size;
  int64_t stride; // between the bytes of a block
  Rows rows;
  Rows scale_rows;
  int64_t scale_stride;
  std::optional<Swizzle> swizzle;
  int64_t scale_columns; // of the swizzled matrix
  bool stream;
};

// What decoding needs to know of a format.
struct MXDecoding {
  int lowest; // scale byte from which every product is normal or zero
  int implied; // subtracted from the scale of codes that are integers
  int magnitude;
  int dropped; // fraction bits of float32 that a code has not
  int rebias; // from a code's exponent field to float32's, in its place
  int subnormal; // float32 bits of the smallest normal value
  int sign_shift;
  int max_code;
  int inf_code;

  explicit MXDecoding(const MXFormat& format)
      : lowest(format.bias() + format.mantissa_bits),
        implied(format.twos_complement ? format.mantissa_bits : 0),
        magnitude(format.sign_bit() - 1),
        dropped(kFraction - format.mantissa_bits),
        rebias((kE8M0Bias - format.bias()) * (1 << kFraction)),
        subnormal(rebias + (1 << kFraction)),
        sign_shift(32 - format.bits),
        max_code(format.max_code),
        inf_code(format.inf_code) {}
};

// Float32 bits of value(code) * factor, where that is normal or zero.
template <bool twos_complement, bool has_nan>
inline Lanes decode(Lanes code, Lanes factor, const MXDecoding& d) {
  if constexpr (twos_complement) {
    return multiply_floats(to_float(code), factor);
  } else {
    const auto magnitude = code & d.magnitude;
    // As if each code had a leading one. Those below s, the smallest normal
    // value, have none: they read as s + m where the value is 2m. (r - s) + r
    // is right for them, and at least r for all others.
    const auto read = (magnitude << d.dropped) + d.rebias;
    const auto value = min_floats(
        read,
        add_floats(add_floats(read, Lanes::all(d.subnormal ^ INT_MIN)), read));
    const auto sign = (code << d.sign_shift) & INT_MIN;
    const auto product = multiply_floats(value, factor) | sign;
    if constexpr (has_nan) {
      const auto is_inf = greater(magnitude, Lanes::all(d.max_code));
      const auto is_nan =
          greater(magnitude, Lanes::all(std::max(d.max_code, d.inf_code)));
      const auto number = select(is_inf, sign | Lanes::all(kInf), product);
      return select(is_nan, Lanes::all(kQuietNaN), number);
    } else {
      return product;
    }
  }
}

// 16 or 32 elements whose codes are side by side.
template <Payload kind, bool has_nan, typename Out, int n>
inline void dequantize_run(
    const uint8_t* payload,
    Lanes factor,
    const MXDecoding& d,
    typename Out::raw* output) {
  constexpr bool is_signed = kind == Payload::twos_complement;
  Lanes x[n];
  if constexpr (kind == Payload::nibbles) {
    uint8_t codes[32];
    uint8_t bytes[16] = {};
    std::memcpy(bytes, payload, n * Lanes::size / 2);
    const auto pairs = Bytes::load(bytes);
    const auto low = low_nibbles(pairs);
    const auto high = high_nibbles(pairs);
    interleave_low(low, high).store(codes);
    interleave_high(low, high).store(codes + 16);
    load_bytes<false>(codes, x);
  } else {
    load_bytes<is_signed>(payload, x);
  }
  for (auto& lanes : x) {
    lanes = decode<is_signed, has_nan>(lanes, factor, d);
  }
  store_values(x, Out{}, output);
}

template <Payload kind, bool has_nan, typename Out>
void dequantize_lanes(
    const uint8_t* payload,
    int64_t stride,
    int64_t block_size,
    int scale,
    const MXDecoding& d,
    typename Out::raw* output) {
  constexpr int per_byte = kind == Payload::nibbles ? 2 : 1;
  constexpr int whole = 32 / Lanes::size;
  constexpr int half = 16 / Lanes::size;
  const auto factor = Lanes::all((scale - d.implied) << kFraction);
  int64_t i = 0;
  if (stride == 1) {
    for (; i + 32 <= block_size; i += 32) {
      dequantize_run<kind, has_nan, Out, whole>(
          payload + i / per_byte, factor, d, output + i);
    }
  }
  for (; i < block_size; i += 16) {
    const auto n = static_cast<int>(std::min<int64_t>(16, block_size - i));
    uint8_t codes[16] = {};
    for (int k = 0; k < n / per_byte; ++k) {
      codes[k] = payload[(i / per_byte + k) * stride];
    }
    typename Out::raw values[16];
    dequantize_run<kind, has_nan, Out, half>(codes, factor, d, values);
    std::memcpy(output + i, values, n * sizeof(values[0]));
  }
}

// Calls f with each block in [begin, end): its payload, scale byte and output.
template <typename Out, typename Func>
void for_each_block(
    const DequantizeJob& job,
    int64_t block_bytes,
    int64_t begin,
    int64_t end,
    Func&& f) {
  auto* output = static_cast<typename Out::raw*>(job.output);
  const bool swizzled = job.swizzle.has_value();
  BlockCursor cursor(
      job.rows, job.blocks_per_row, block_bytes * job.stride, begin);
  BlockCursor scale_cursor(
      job.scale_rows,
      job.blocks_per_row,
      job.scale_stride,
      swizzled ? 0 : begin);
  for (int64_t block = begin; block < end; ++block) {
    int64_t scale_offset = 0;
    if (swizzled) {
      const int64_t position = (*job.swizzle)(
          block / job.blocks_per_row, block % job.blocks_per_row);
      scale_offset = job.scale_rows.offset(position / job.scale_columns) +
          position % job.scale_columns * job.scale_stride;
    } else {
      scale_offset = scale_cursor.offset();
      scale_cursor.next();
    }
    const uint8_t* payload = job.payload + cursor.offset();
    const int scale = job.scale[scale_offset];
    auto* target = output + block * job.block_size;
    cursor.next();
    f(payload, scale, target);
  }
}

template <typename Out>
void dequantize_blocks(
    const DequantizeJob& job,
    const MXFormat& format,
    int64_t begin,
    int64_t end) {
  const MXDecoding d(format);
  const auto dequantize = [&](auto kind, auto has_nan) {
    for_each_block<Out>(
        job,
        job.block_size / format.codes_per_byte(),
        begin,
        end,
        [&](const uint8_t* payload, int scale, typename Out::raw* output) {
          if (scale < d.lowest || scale == kMXScaleNaN) {
            dequantize_block<Out>(
                payload, job.stride, job.block_size, format, scale, output);
          } else {
            dequantize_lanes<kind, has_nan, Out>(
                payload, job.stride, job.block_size, scale, d, output);
          }
        });
  };
  with_payload(format, [&](auto kind) {
    if (kind == Payload::bytes && format.nan_code != 0) {
      dequantize(kind, std::true_type{});
    } else {
      dequantize(kind, std::false_type{});
    }
  });
}

} // namespace
} // namespace at::native
