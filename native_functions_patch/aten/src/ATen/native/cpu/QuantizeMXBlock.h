#pragma once

// Included by QuantizeMXKernel.cpp alone, once for each instruction set: numbers,
// dtypes, one block in portable code, and where blocks lie.
//
// All arithmetic that decides a code or a scale is on integers, or in float32
// steps that are exact and meet no subnormal. So neither flush-to-zero nor the
// instruction set nor the number of threads can change a byte.

#include <ATen/native/quantized/QuantizeMX.h>

#include <c10/util/bit_cast.h>
#include <c10/util/irange.h>

#include <cstring>

namespace at::native {
namespace {

constexpr uint32_t kMagnitude = 0x7FFFFFFF;
constexpr uint32_t kInf = 0x7F800000;
constexpr uint32_t kQuietNaN = 0x7FC00000;
constexpr uint32_t kMinNormal = 0x00800000;
constexpr int kFraction = 23;
constexpr int kE8M0Bias = 127;
constexpr int kE8M0Max = 254;
// A subnormal float32 is its bits, read as an integer, times 2^-149.
constexpr int kSubnormalExponent = 149;

// Blocks that are worked on together: their maxima share one register.
constexpr int kGroup = 32;
// Elements that the portable code keeps beside the block.
constexpr int64_t kChunk = 256;
// Rows of the output, and bytes of each, that are made together where the input
// is not contiguous along dim: there a cache line holds elements of several rows.
constexpr int64_t kTileRows = 64;

enum Format : int { E4M3, E5M2, E2M3, E3M2, E2M1, INT8 };

// The numbers that encoding needs. A float's bits are shifted so that the
// exponent field counts from the smallest power of two that can still round to
// a nonzero code, "base" below the block's scale; codes without a leading one
// are those whose field is below "first_normal".
template <int F, int fraction>
struct Encoding {
  static constexpr const MXFormat& format = kMXFormats[F];
  static constexpr int mantissa = format.mantissa_bits;
  static constexpr int base = format.bias() + mantissa;
  static constexpr int first_normal = mantissa + 1;
  // Room for the bits that denormalising shifts out. A lane of 16 or 32 bits
  // then holds the code in its top byte, with the bits to round off below.
  static constexpr int spare = mantissa + 1;
  static constexpr int max =
      ((format.emax() + base) << fraction) |
      (format.max_mantissa() << (fraction - mantissa));
};

// ---- float32 bits of the three input dtypes --------------------------------

struct Float32 {
  using raw = uint32_t;
  static uint32_t bits(raw x) {
    return x;
  }
};

struct BFloat16Bits {
  using raw = uint16_t;
  static uint32_t bits(raw x) {
    return static_cast<uint32_t>(x) << 16;
  }
};

struct Float16 {
  using raw = uint16_t;
  static uint32_t bits(raw x) {
    const uint32_t magnitude = x & 0x7FFF;
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
    // As float(integer), which is never subnormal, times 2^-24.
    const uint32_t subnormal =
        c10::bit_cast<uint32_t>(static_cast<float>(static_cast<int>(magnitude)));
    uint32_t bits = (magnitude << 13) + (112u << kFraction);
    bits = magnitude >= 0x7C00 ? bits + (112u << kFraction) : bits;
    bits = magnitude < 0x0400 ? subnormal - (24u << kFraction) : bits;
    bits = magnitude == 0 ? 0 : bits;
    return bits | sign;
  }
};

// ---- one block, any size and stride, any instruction set -------------------

// Bits of a magnitude with the exponent field of a subnormal made what it would
// be in a wider format: zero or negative.
inline int32_t normalized(uint32_t magnitude) {
  const float number = static_cast<float>(static_cast<int32_t>(magnitude));
  const int32_t subnormal =
      c10::bit_cast<int32_t>(number) - (kSubnormalExponent << kFraction);
  return magnitude < kMinNormal ? subnormal : static_cast<int32_t>(magnitude);
}

inline uint8_t scale_byte(uint32_t amax, uint32_t addend, int emax) {
  if (amax >= kInf) {
    return kMXScaleNaN;
  }
  const auto rounded = normalized(amax) + static_cast<int32_t>(addend);
  const int byte = (rounded >> kFraction) - emax;
  return static_cast<uint8_t>(std::clamp(byte, 0, kE8M0Max));
}

// Code without sign of a magnitude whose exponent field counts from the base.
template <int F>
inline uint32_t encode(int32_t shifted) {
  using E = Encoding<F, kFraction>;
  constexpr int code_shift = 24;
  const auto w = static_cast<uint32_t>(std::clamp(shifted, 0, E::max));
  const auto field = static_cast<int32_t>(w >> kFraction);
  const int32_t missing = std::max(E::first_normal - field, 0);
  const uint32_t significand = (w & (kMinNormal - 1)) | kMinNormal;
  const uint32_t denormal = (significand << E::spare) >> missing;
  const int32_t above =
      static_cast<int32_t>(w) - ((E::first_normal - 1) << kFraction);
  // Each of the two is right where it is the larger one.
  const uint32_t normal = static_cast<uint32_t>(std::max(above, 0)) << E::spare;
  const uint32_t full = std::max(normal, denormal);
  const uint32_t odd = (full >> code_shift) & 1;
  return (full + ((1u << (code_shift - 1)) - 1) + odd) >> code_shift;
}

template <int F>
inline uint8_t with_sign(uint32_t code, uint32_t bits) {
  constexpr const MXFormat& format = kMXFormats[F];
  if constexpr (format.twos_complement) {
    const auto mask = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
    return static_cast<uint8_t>((code ^ mask) - mask);
  } else {
    return static_cast<uint8_t>(code | ((bits >> 31) * format.sign_bit()));
  }
}

// Calls f with the stride, as a constant where it is one.
template <typename Func>
inline void with_stride(int64_t stride, Func&& f) {
  if (stride == 1) {
    f(std::integral_constant<int64_t, 1>{});
  } else {
    f(stride);
  }
}

template <int F>
inline void store_codes(const uint8_t* codes, int64_t n, uint8_t* payload) {
  if constexpr (kMXFormats[F].codes_per_byte() == 2) {
    for (int64_t i = 0; i < n / 2; ++i) {
      payload[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
    }
  } else {
    std::memcpy(payload, codes, n);
  }
}

template <int F, typename In>
uint8_t quantize_block(
    const typename In::raw* input,
    int64_t stride,
    int64_t block_size,
    uint32_t addend,
    uint8_t* payload) {
  using E = Encoding<F, kFraction>;
  constexpr const MXFormat& format = kMXFormats[F];
  uint32_t amax = 0;
  with_stride(stride, [&](auto step) {
    // As integers: for sign-cleared bits their order is numeric order, and NaN
    // sorts highest.
    for (int64_t i = 0; i < block_size; ++i) {
      amax = std::max(amax, In::bits(input[i * step]) & kMagnitude);
    }
  });
  const uint8_t scale = scale_byte(amax, addend, format.emax());
  if (scale == kMXScaleNaN) {
    std::memset(payload, format.nan_code, block_size / format.codes_per_byte());
    return scale;
  }
  const int32_t offset = (scale - E::base) * (1 << kFraction);
  // Any lower magnitude is less than half the smallest code. The bound keeps
  // the difference below within 32 bits.
  constexpr int32_t lowest = -E::base * (1 << kFraction);
  for (int64_t start = 0; start < block_size; start += kChunk) {
    const int64_t n = std::min(kChunk, block_size - start);
    const auto* chunk = input + start * stride;
    uint8_t codes[kChunk];
    with_stride(stride, [&](auto step) {
      if (scale > E::base) { // every subnormal rounds to zero
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t bits = In::bits(chunk[i * step]);
          const auto magnitude = static_cast<int32_t>(bits & kMagnitude);
          codes[i] = with_sign<F>(encode<F>(magnitude - offset), bits);
        }
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t bits = In::bits(chunk[i * step]);
          const int32_t magnitude =
              std::max(normalized(bits & kMagnitude), lowest);
          codes[i] = with_sign<F>(encode<F>(magnitude - offset), bits);
        }
      }
    });
    store_codes<F>(codes, n, payload + start / format.codes_per_byte());
  }
  return scale;
}

// ---- where blocks lie -------------------------------------------------------

// The dimensions other than dim, in their order; a row is one index of them.
struct Rows {
  MXSizes sizes;
  MXSizes strides;
  int64_t count = 1;

  Rows(IntArrayRef all_sizes, IntArrayRef all_strides, int64_t dim) {
    for (const auto i : c10::irange(static_cast<int64_t>(all_sizes.size()))) {
      if (i != dim) {
        sizes.push_back(all_sizes[i]);
        strides.push_back(all_strides[i]);
        count *= all_sizes[i];
      }
    }
  }

  int64_t offset(int64_t row) const {
    int64_t result = 0;
    for (auto i = static_cast<int64_t>(sizes.size()) - 1; i >= 0; --i) {
      result += row % sizes[i] * strides[i];
      row /= sizes[i];
    }
    return result;
  }

  // Rows that follow each other at the distance of their length are one row.
  int64_t merge_into(int64_t length, int64_t stride) {
    while (!sizes.empty() && (sizes.back() == 1 || strides.back() == length * stride)) {
      length *= sizes.back();
      count /= sizes.back();
      sizes.pop_back();
      strides.pop_back();
    }
    return length;
  }
};

// Walks over the blocks of consecutive rows.
struct BlockCursor {
  BlockCursor(
      const Rows& rows,
      int64_t blocks_per_row,
      int64_t block_stride,
      int64_t block)
      : rows_(rows),
        blocks_per_row_(blocks_per_row),
        block_stride_(block_stride),
        row_(block / blocks_per_row),
        column_(block % blocks_per_row),
        row_offset_(rows.offset(row_)) {}

  int64_t offset() const {
    return row_offset_ + column_ * block_stride_;
  }

  void next() {
    if (++column_ == blocks_per_row_) {
      column_ = 0;
      ++row_;
      if (row_ < rows_.count) {
        row_offset_ = rows_.offset(row_);
      }
    }
  }

 private:
  const Rows& rows_;
  int64_t blocks_per_row_;
  int64_t block_stride_;
  int64_t row_;
  int64_t column_;
  int64_t row_offset_;
};

// Position of the scale of block (row, column) in tiles of 128 rows by 4
// columns, for each matrix of the leading dimensions.
struct Swizzle {
  int64_t rows;
  int64_t column_tiles;
  int64_t matrix_bytes;

  Swizzle(int64_t rows, int64_t columns)
      : rows(rows),
        column_tiles((columns + kMXTileColumns - 1) / kMXTileColumns),
        matrix_bytes(
            (rows + kMXTileRows - 1) / kMXTileRows * column_tiles *
            kMXTileRows * kMXTileColumns) {}

  int64_t operator()(int64_t row, int64_t column) const {
    const int64_t matrix = row / rows;
    row %= rows;
    const int64_t tile =
        row / kMXTileRows * column_tiles + column / kMXTileColumns;
    row %= kMXTileRows;
    return matrix * matrix_bytes + tile * kMXTileRows * kMXTileColumns +
        row % 32 * 16 + row / 32 * 4 + column % kMXTileColumns;
  }
};

struct QuantizeJob {
  uint8_t* payload;
  uint8_t* scale;
  const void* input;
  uint32_t addend;
  int64_t blocks_per_row;
  int64_t block_size;
  int64_t stride; // between the elements of a block
  Rows rows;
  std::optional<Swizzle> swizzle;
  bool stream;

  void put_scale(int64_t block, uint8_t byte) const {
    if (swizzle) {
      scale[(*swizzle)(block / blocks_per_row, block % blocks_per_row)] = byte;
    } else {
      scale[block] = byte;
    }
  }
};

template <int F>
constexpr int64_t payload_bytes(int64_t elements) {
  return elements / kMXFormats[F].codes_per_byte();
}

// Where dim is not the innermost dimension of the input, the rows that lie side
// by side in memory are worked on together: rows first + i * row_step for i in
// [0, count), whose inputs are row_stride apart.
struct Tile {
  int64_t offset;
  int64_t row_stride;
  int64_t first;
  int64_t row_step;
  int64_t count;
  int64_t block_begin;
  int64_t block_end;
};

} // namespace
} // namespace at::native
