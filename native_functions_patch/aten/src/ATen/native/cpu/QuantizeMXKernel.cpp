#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/quantized/QuantizeMX.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/bit_cast.h>
#include <c10/util/irange.h>

#include <cstring>

#if defined(CPU_CAPABILITY_AVX512)
#include <immintrin.h>
#endif

// All arithmetic that decides a code or a scale is on integers, or in float32
// steps that are exact and meet no subnormal. So neither flush-to-zero nor the
// instruction set nor the number of threads can change a byte.

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

#if defined(CPU_CAPABILITY_AVX512)

// ---- blocks of 32 in AVX-512 -------------------------------------------------
//
// A block of 32 is one register of 16-bit lanes: a bfloat16, or the upper half
// of a float32 with the lower half ORed into its last bit ("round to odd"),
// which rounds as the float32 does to any format of at most five fraction bits.
// INT8 has six, and takes 32-bit lanes unless the input is bfloat16.

constexpr bool kWide(int F, bool is_bfloat16) {
  return F == INT8 && !is_bfloat16;
}

inline __m512i words(int x) {
  return _mm512_set1_epi16(static_cast<short>(x));
}

inline __m512i word_iota() {
  const auto low = _mm256_setr_epi8(
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  return _mm512_cvtepu8_epi16(low);
}

// High (or low) halves of the 32 lanes of a and b, in order.
inline __m512i high_halves(__m512i a, __m512i b) {
  const auto index = _mm512_add_epi16(_mm512_slli_epi16(word_iota(), 1), words(1));
  return _mm512_permutex2var_epi16(a, index, b);
}

inline __m512i low_halves(__m512i a, __m512i b) {
  const auto index = _mm512_slli_epi16(word_iota(), 1);
  return _mm512_permutex2var_epi16(a, index, b);
}

inline __m512i to_odd(__m512i a, __m512i b) {
  const auto sticky = _mm512_min_epu16(low_halves(a, b), words(1));
  return _mm512_or_si512(high_halves(a, b), sticky);
}

// 32 inputs as two registers of float32 bits.
struct Pair {
  __m512i low;
  __m512i high;
};

template <typename In>
inline Pair load_wide(const typename In::raw* input) {
  if constexpr (std::is_same_v<In, Float32>) {
    return {_mm512_loadu_si512(input), _mm512_loadu_si512(input + 16)};
  } else if constexpr (std::is_same_v<In, Float16>) {
    const auto* halves = reinterpret_cast<const __m256i*>(input);
    const auto low = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
    const auto high = _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1));
    return {_mm512_castps_si512(low), _mm512_castps_si512(high)};
  } else {
    const auto* halves = reinterpret_cast<const __m256i*>(input);
    const auto low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves));
    const auto high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves + 1));
    return {_mm512_slli_epi32(low, 16), _mm512_slli_epi32(high, 16)};
  }
}

template <typename In>
inline __m512i load_words(const typename In::raw* input) {
  if constexpr (std::is_same_v<In, BFloat16Bits>) {
    return _mm512_loadu_si512(input);
  } else {
    const auto pair = load_wide<In>(input);
    return to_odd(pair.low, pair.high);
  }
}

// Maxima of 2^k registers as one: at each level two registers become one, whose
// lanes are maxima of one or the other. Log-many steps would not do for one
// register by itself.
struct Max16 {
  static __m512i max(__m512i a, __m512i b) {
    return _mm512_max_epu16(a, b);
  }
};

struct Max32 {
  static __m512i max(__m512i a, __m512i b) {
    return _mm512_max_epu32(a, b);
  }
};

template <typename Max>
inline __m512i merge32(__m512i a, __m512i b) {
  return Max::max(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

template <typename Max>
inline __m512i merge64(__m512i a, __m512i b) {
  return Max::max(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

template <typename Max>
inline __m512i merge_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const auto ab = Max::max(
      _mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
  const auto cd = Max::max(
      _mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xEE));
  return Max::max(
      _mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xDD));
}

inline __m512i merge16(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
}

// load(i) gives the magnitudes of block i in 16-bit lanes.
template <typename Load>
inline __m512i maxima_of_8(int i, const Load& load) {
  const auto ab = merge16(load(i), load(i + 1));
  const auto cd = merge16(load(i + 2), load(i + 3));
  const auto abcd = merge32<Max16>(ab, cd);
  const auto ef = merge16(load(i + 4), load(i + 5));
  const auto gh = merge16(load(i + 6), load(i + 7));
  return merge64<Max16>(abcd, merge32<Max16>(ef, gh));
}

template <typename Load>
inline __m512i maxima_of_32(const Load& load) {
  __m512i parts[4];
  for (const auto i : c10::irange(4)) {
    parts[i] = maxima_of_8(8 * i, load);
  }
  return merge_lanes<Max16>(parts[0], parts[1], parts[2], parts[3]);
}

// load(i) gives the magnitudes of block i in 32-bit lanes, two merged into one.
template <typename Load>
inline __m512i wide_maxima_of_16(int first, const Load& load) {
  __m512i parts[4];
  for (const auto j : c10::irange(4)) {
    const int i = first + 4 * j;
    parts[j] = merge64<Max32>(
        merge32<Max32>(load(i), load(i + 1)), merge32<Max32>(load(i + 2), load(i + 3)));
  }
  return merge_lanes<Max32>(parts[0], parts[1], parts[2], parts[3]);
}

// Scales of 32 blocks at once. A block is special where the fast encoding does
// not hold: NaN or Inf in it, or a scale so low that subnormals count.
struct Scales {
  __m256i bytes;
  __mmask32 special;
};

template <int F>
inline Scales scales_of_words(__m512i amax, uint32_t addend) {
  using E = Encoding<F, 7>;
  const auto finite = _mm512_min_epu16(amax, words((kInf >> 16) - 1));
  const auto rounded = _mm512_add_epi16(finite, words(static_cast<int>(addend)));
  const auto exponent = _mm512_srli_epi16(rounded, 7);
  const auto byte = _mm512_min_epu16(
      _mm512_subs_epu16(exponent, words(E::format.emax())), words(kE8M0Max));
  const auto not_finite = _mm512_cmpge_epu16_mask(amax, words(kInf >> 16));
  const auto low = _mm512_mask_cmple_epu16_mask(
      _mm512_test_epi16_mask(amax, amax), byte, words(E::base));
  return {_mm512_cvtepi16_epi8(byte), not_finite | low};
}

template <int F>
inline Scales scales_of_wide(const __m512i (&amax)[2], uint32_t addend) {
  using E = Encoding<F, kFraction>;
  __m128i bytes[2];
  uint32_t special = 0;
  for (const auto i : c10::irange(2)) {
    const auto finite = _mm512_min_epu32(amax[i], _mm512_set1_epi32(kInf - 1));
    const auto exponent = _mm512_srli_epi32(
        _mm512_add_epi32(finite, _mm512_set1_epi32(static_cast<int>(addend))),
        kFraction);
    auto byte = _mm512_sub_epi32(exponent, _mm512_set1_epi32(E::format.emax()));
    byte = _mm512_max_epi32(byte, _mm512_setzero_si512());
    byte = _mm512_min_epi32(byte, _mm512_set1_epi32(kE8M0Max));
    const auto not_finite =
        _mm512_cmpge_epu32_mask(amax[i], _mm512_set1_epi32(kInf));
    const auto low = _mm512_mask_cmple_epu32_mask(
        _mm512_test_epi32_mask(amax[i], amax[i]),
        byte,
        _mm512_set1_epi32(E::base));
    special |= static_cast<uint32_t>(not_finite | low) << (16 * i);
    bytes[i] = _mm512_cvtepi32_epi8(byte);
  }
  return {_mm256_set_m128i(bytes[1], bytes[0]), special};
}

// What a regular block's elements are divided by, one for each of 32 blocks:
// in 16-bit lanes the exponent to subtract, twice in 32 bits; in 32-bit lanes
// the factor that makes the smallest code 1.
template <int F, bool wide>
inline void store_divisors(__m256i scale_bytes, uint32_t* divisors) {
  const __m128i halves[2] = {
      _mm256_castsi256_si128(scale_bytes),
      _mm256_extracti128_si256(scale_bytes, 1)};
  for (const auto i : c10::irange(2)) {
    const auto scale = _mm512_cvtepu8_epi32(halves[i]);
    __m512i divisor;
    if constexpr (wide) {
      // Byte 254 and six fraction bits: the least field is 6, so a normal one.
      const auto field = _mm512_sub_epi32(
          _mm512_set1_epi32(2 * kE8M0Bias + kMXFormats[F].mantissa_bits), scale);
      divisor = _mm512_slli_epi32(field, kFraction);
    } else {
      const auto base = _mm512_set1_epi32(Encoding<F, 7>::base);
      const auto offset = _mm512_slli_epi32(
          _mm512_sub_epi32(_mm512_max_epi32(scale, base), base), 7);
      divisor = _mm512_or_si512(offset, _mm512_slli_epi32(offset, 16));
    }
    _mm512_storeu_si512(divisors + 16 * i, divisor);
  }
}

// Codes in 16-bit lanes: in the upper byte, or, INT8, as 16-bit numbers.
template <int F>
inline __m512i encode_words(__m512i x, __m512i offset) {
  using E = Encoding<F, 7>;
  const auto magnitude = _mm512_and_si512(x, words(0x7FFF));
  const auto w =
      _mm512_min_epu16(_mm512_subs_epu16(magnitude, offset), words(E::max));
  const auto missing = _mm512_subs_epu16(
      words(E::first_normal), _mm512_srli_epi16(w, 7));
  // (w & 0x7F) | 0x80
  const auto significand =
      _mm512_ternarylogic_epi32(w, words(0x7F), words(0x80), 0xEA);
  const auto denormal =
      _mm512_srlv_epi16(_mm512_slli_epi16(significand, E::spare), missing);
  const auto normal = _mm512_slli_epi16(
      _mm512_subs_epu16(w, words((E::first_normal - 1) << 7)), E::spare);
  const auto full = _mm512_max_epu16(normal, denormal);
  const auto odd = _mm512_and_si512(_mm512_srli_epi16(full, 8), words(1));
  const auto code = _mm512_add_epi16(_mm512_add_epi16(full, words(0x7F)), odd);
  if constexpr (E::format.twos_complement) {
    const auto sign = _mm512_srai_epi16(x, 15);
    const auto number = _mm512_srli_epi16(code, 8);
    return _mm512_sub_epi16(_mm512_xor_si512(number, sign), sign);
  } else {
    constexpr int sign_bit = E::format.sign_bit() << 8;
    const auto sign =
        sign_bit == 0x8000 ? x : _mm512_srli_epi16(x, 8 - E::format.bits);
    // sign_bit ? sign : code
    return _mm512_ternarylogic_epi32(words(sign_bit), sign, code, 0xCA);
  }
}

// INT8 in 32-bit lanes: the hardware's conversion rounds ties to even.
inline __m512i encode_wide(__m512i x, __m512 factor) {
  const auto product = _mm512_mul_ps(_mm512_castsi512_ps(x), factor);
  return _mm512_cvt_roundps_epi32(
      product, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <bool stream>
inline void store512(uint8_t* target, __m512i x) {
  if constexpr (stream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), x);
  } else {
    _mm512_storeu_si512(target, x);
  }
}

inline __m512i gather_dwords(__m512i x) {
  // Lane l, dword i to dword 4 i + l.
  const auto index =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(index, x);
}

inline __m512i gather_qwords(__m512i x) {
  const auto index = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(index, x);
}

template <int F>
inline __m512i pack_words(__m512i a, __m512i b) {
  if constexpr (F == INT8) {
    return _mm512_packs_epi16(a, b);
  } else {
    return _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
  }
}

// Encoding leaves the memory idle, and hardware prefetchers stop at the end of a
// page, which is as long as a group of float32 blocks. So the encoding of one
// group fetches a later one; where the input isn't contiguous it is a wrong
// guess, and harmless.
constexpr int64_t kPrefetchGroups = 2;

template <_mm_hint hint, typename Raw>
inline void prefetch(const Raw* source, int64_t elements_ahead) {
  // An integer, as the address may lie beyond the tensor.
  const auto address =
      reinterpret_cast<uintptr_t>(source) + elements_ahead * sizeof(Raw);
  // 32 elements are one line of 16-bit numbers, two of float32.
  for (size_t line = 0; line < 32 * sizeof(Raw); line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(address + line), hint);
  }
}

// Quantizes 32 blocks of 32, block i at inputs[i], to consecutive payload.
template <int F, typename In, bool stream>
void quantize_group(
    const typename In::raw* const* inputs,
    uint32_t addend,
    uint8_t* payload,
    uint8_t* scale) {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr bool wide = kWide(F, std::is_same_v<In, BFloat16Bits>);
  alignas(64) uint16_t kept[wide ? 1 : kGroup][32];
  alignas(64) uint32_t divisors[kGroup];
  Scales scales;
  if constexpr (wide) {
    const auto mask = _mm512_set1_epi32(kMagnitude);
    const auto load = [&](int i) {
      const auto pair = load_wide<In>(inputs[i]);
      return _mm512_max_epu32(
          _mm512_and_si512(pair.low, mask), _mm512_and_si512(pair.high, mask));
    };
    const __m512i amax[2] = {
        wide_maxima_of_16(0, load), wide_maxima_of_16(16, load)};
    scales = scales_of_wide<F>(amax, addend);
  } else {
    const auto load = [&](int i) {
      const auto x = load_words<In>(inputs[i]);
      if constexpr (!std::is_same_v<In, BFloat16Bits>) {
        _mm512_store_si512(kept[i], x);
      }
      return _mm512_and_si512(x, words(0x7FFF));
    };
    scales = scales_of_words<F>(maxima_of_32(load), addend >> 16);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(scale), scales.bytes);
  store_divisors<F, wide>(scales.bytes, divisors);

  const auto codes = [&](int i) {
    prefetch<_MM_HINT_NTA>(inputs[i], kPrefetchGroups * kGroup * 32);
    if constexpr (wide) {
      const auto factor = _mm512_set1_ps(c10::bit_cast<float>(divisors[i]));
      const auto pair = load_wide<In>(inputs[i]);
      return _mm512_packs_epi32(
          encode_wide(pair.low, factor), encode_wide(pair.high, factor));
    } else {
      const auto offset = _mm512_set1_epi32(static_cast<int>(divisors[i]));
      const void* source = kept[i];
      if constexpr (std::is_same_v<In, BFloat16Bits>) {
        source = inputs[i];
      }
      return encode_words<F>(_mm512_loadu_si512(source), offset);
    }
  };
  if constexpr (format.codes_per_byte() == 2) {
    const auto nibbles = _mm512_set1_epi16(0x1001); // low + 16 * high
    for (int i = 0; i < kGroup; i += 4) {
      const auto ab = pack_words<F>(codes(i), codes(i + 1));
      const auto cd = pack_words<F>(codes(i + 2), codes(i + 3));
      const auto packed = _mm512_packus_epi16(
          _mm512_maddubs_epi16(ab, nibbles), _mm512_maddubs_epi16(cd, nibbles));
      store512<stream>(payload + i * 16, gather_dwords(packed));
    }
  } else {
    for (int i = 0; i < kGroup; i += 2) {
      const auto packed = pack_words<F>(codes(i), codes(i + 1));
      if constexpr (wide) {
        // The saturation of the packing leaves -128.
        const auto in_range = _mm512_max_epi8(packed, _mm512_set1_epi8(-127));
        store512<stream>(payload + i * 32, gather_dwords(in_range));
      } else {
        store512<stream>(payload + i * 32, gather_qwords(packed));
      }
    }
  }
  for (auto special = static_cast<uint32_t>(scales.special); special != 0;
       special &= special - 1) {
    const int i = __builtin_ctz(special);
    constexpr int bytes = 32 / format.codes_per_byte();
    scale[i] = quantize_block<F, In>(
        inputs[i], 1, 32, addend, payload + i * bytes);
  }
}

#endif // CPU_CAPABILITY_AVX512

// ---- quantize: walking over a tensor -----------------------------------------

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

#if defined(CPU_CAPABILITY_AVX512)

template <int F, typename In, bool stream>
void quantize_groups(const QuantizeJob& job, int64_t begin, int64_t end) {
  constexpr int64_t bytes = payload_bytes<F>(32);
  Rows rows = job.rows;
  const int64_t blocks_per_row =
      rows.merge_into(job.blocks_per_row * 32, 1) / 32;
  const auto* base = static_cast<const typename In::raw*>(job.input);
  BlockCursor cursor(rows, blocks_per_row, 32, begin);
  for (int64_t block = begin; block < end; block += kGroup) {
    const int64_t n = std::min<int64_t>(kGroup, end - block);
    const typename In::raw* inputs[kGroup];
    for (const auto i : c10::irange(n)) {
      inputs[i] = base + cursor.offset();
      cursor.next();
    }
    uint8_t* payload = job.payload + block * bytes;
    uint8_t scale[kGroup];
    if (n == kGroup) {
      quantize_group<F, In, stream>(inputs, job.addend, payload, scale);
    } else {
      std::fill(inputs + n, inputs + kGroup, inputs[0]);
      alignas(64) uint8_t codes[kGroup * bytes];
      quantize_group<F, In, false>(inputs, job.addend, codes, scale);
      std::memcpy(payload, codes, n * bytes);
    }
    if (job.swizzle) {
      for (const auto i : c10::irange(n)) {
        job.put_scale(block + i, scale[i]);
      }
    } else {
      std::memcpy(job.scale + block, scale, n);
    }
  }
  if constexpr (stream) {
    _mm_sfence();
  }
}

#endif // CPU_CAPABILITY_AVX512

template <int F, typename In>
void quantize_blocks(const QuantizeJob& job, int64_t begin, int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
  if (job.block_size == 32 && job.stride == 1) {
    if (job.stream) {
      quantize_groups<F, In, true>(job, begin, end);
    } else {
      quantize_groups<F, In, false>(job, begin, end);
    }
    return;
  }
#endif
  const int64_t bytes = payload_bytes<F>(job.block_size);
  const auto* base = static_cast<const typename In::raw*>(job.input);
  BlockCursor cursor(
      job.rows, job.blocks_per_row, job.block_size * job.stride, begin);
  for (int64_t block = begin; block < end; ++block) {
    const uint8_t byte = quantize_block<F, In>(
        base + cursor.offset(),
        job.stride,
        job.block_size,
        job.addend,
        job.payload + block * bytes);
    job.put_scale(block, byte);
    cursor.next();
  }
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

#if defined(CPU_CAPABILITY_AVX512)

// ---- blocks of 32 that lie across the rows of memory -------------------------
//
// Lanes are neighbouring blocks, so maxima and scales come without any shuffle.
// A tile is read row by row, in runs as long as memory and prefetchers want them;
// the codes are transposed at the end, as bytes.

// Lanes beyond the last column read as zero.
template <typename In>
inline Pair load_wide_masked(const typename In::raw* input, __mmask32 mask) {
  const auto high_mask = static_cast<__mmask16>(mask >> 16);
  if constexpr (std::is_same_v<In, Float32>) {
    return {
        _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), input),
        _mm512_maskz_loadu_epi32(high_mask, input + 16)};
  } else {
    const auto halves = _mm512_maskz_loadu_epi16(mask, input);
    const auto low = _mm512_castsi512_si256(halves);
    const auto high = _mm512_extracti64x4_epi64(halves, 1);
    return {
        _mm512_castps_si512(_mm512_cvtph_ps(low)),
        _mm512_castps_si512(_mm512_cvtph_ps(high))};
  }
}

template <typename In>
inline __m512i load_words_masked(const typename In::raw* input, __mmask32 mask) {
  if constexpr (std::is_same_v<In, BFloat16Bits>) {
    return _mm512_maskz_loadu_epi16(mask, input);
  } else {
    const auto pair = load_wide_masked<In>(input, mask);
    return to_odd(pair.low, pair.high);
  }
}

// A tile: as many blocks of 32 rows as make two cache lines of payload. Single
// lines, a power of two apart, took twice as long to write.
template <int F, typename In>
struct Columns {
  using Raw = typename In::raw;
  static constexpr bool wide = kWide(F, std::is_same_v<In, BFloat16Bits>);
  static constexpr int registers = wide ? 2 : 1; // of a strip of 32 columns
  // Tiles follow each other across a page and then down the blocks, or down at once.
  // Measured on (4096, 4096), two threads: float32 2.1 to 2.4 ms across, 2.2 to 3.0
  // down; bfloat16 1.3 ms down, 1.4 to 2.3 across.
  static constexpr bool across = sizeof(Raw) == 4;
  static constexpr int columns = across ? 64 : 256;
  static constexpr int panel = across ? 4096 / (columns * sizeof(Raw)) : 1;
  static constexpr int strips = columns / 32;
  static constexpr int per_byte = kMXFormats[F].codes_per_byte();
  static constexpr int payload_rows = 128;
  static constexpr int block_bytes = 32 / per_byte;
  static constexpr int blocks = payload_rows / block_bytes;
  static constexpr int rows_at_once = 8; // streams of memory

  // A block of each column.
  struct Input {
    const Raw* first;
    int64_t stride;
    int count;

    const Raw* at(int row, int s) const {
      return first + row * stride + 32 * s;
    }
    __mmask32 lanes(int s) const {
      const int n = std::clamp(count - 32 * s, 0, 32);
      return static_cast<__mmask32>((uint64_t{1} << n) - 1);
    }
  };

  // 16-bit lanes of a block, with a line more than the strips take: rows a power of
  // two apart would compete for a few sets of the first cache. Wide lanes would not
  // stay there, and are read again.
  __m512i kept[wide ? 1 : 32][strips + 1];
  __m512i divisors[strips][registers];
  __m512i codes[payload_rows][strips / 2];
  alignas(64) uint8_t scale[blocks][columns];
  uint32_t special[blocks][strips];

  void quantize_block(const Input& input, int block, uint32_t addend) {
    __m512i amax[strips][registers] = {};
    for (int first = 0; first < 32; first += rows_at_once) {
      for (int s = 0; 32 * s < input.count; ++s) {
        read(input, first, s, amax[s]);
      }
    }
    for (int s = 0; 32 * s < input.count; ++s) {
      const auto scales = divide_by(amax[s], addend, divisors[s]);
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(scale[block] + 32 * s), scales.bytes);
      special[block][s] = scales.special & input.lanes(s);
    }
    for (int s = 0; 32 * s < input.count; s += 2) {
      for (int row = 0; row < block_bytes; ++row) {
        // Encoding leaves the memory idle, and no hardware prefetcher expects what is
        // read next: the same rows of the next tile, or the next block.
        for (int i = 0; i < per_byte; ++i) {
          const int this_row = row * per_byte + i;
          const auto* next = across ? input.at(this_row, s + strips)
                                    : input.at(this_row + 32, s);
          constexpr auto hint = across ? _MM_HINT_T0 : _MM_HINT_T1;
          prefetch<hint>(next, 0);
          prefetch<hint>(next, 32);
        }
        codes[block * block_bytes + row][s / 2] = payload(input, row, s);
      }
    }
  }

 private:
  void read(const Input& input, int first, int s, __m512i (&amax)[registers]) {
    const auto mask = input.lanes(s);
    auto low = amax[0];
    [[maybe_unused]] auto high = amax[registers - 1];
    for (int row = first; row < first + rows_at_once; ++row) {
      if constexpr (wide) {
        const auto pair = load_wide_masked<In>(input.at(row, s), mask);
        const auto magnitude = _mm512_set1_epi32(kMagnitude);
        low = _mm512_max_epu32(low, _mm512_and_si512(pair.low, magnitude));
        high = _mm512_max_epu32(high, _mm512_and_si512(pair.high, magnitude));
      } else {
        const auto x = load_words_masked<In>(input.at(row, s), mask);
        kept[row][s] = x;
        low = _mm512_max_epu16(
            low, _mm512_and_si512(x, words(kMagnitude >> 16)));
      }
    }
    amax[0] = low;
    if constexpr (wide) {
      amax[1] = high;
    }
  }

  static Scales divide_by(
      const __m512i (&amax)[registers],
      uint32_t addend,
      __m512i (&divisor)[registers]) {
    if constexpr (wide) {
      const auto scales = scales_of_wide<F>(amax, addend);
      store_divisors<F, true>(scales.bytes, reinterpret_cast<uint32_t*>(divisor));
      return scales;
    } else {
      const auto scales = scales_of_words<F>(amax[0], addend >> 16);
      const auto byte = _mm512_cvtepu8_epi16(scales.bytes);
      divisor[0] = _mm512_slli_epi16(
          _mm512_subs_epu16(byte, words(Encoding<F, 7>::base)), 7);
      return scales;
    }
  }

  __m512i code_words(const Input& input, int row, int s) const {
    if constexpr (wide) {
      const auto pair = load_wide_masked<In>(input.at(row, s), input.lanes(s));
      return low_halves(
          encode_wide(pair.low, _mm512_castsi512_ps(divisors[s][0])),
          encode_wide(pair.high, _mm512_castsi512_ps(divisors[s][1])));
    } else {
      return encode_words<F>(kept[row][s], divisors[s][0]);
    }
  }

  // A byte of each of the 64 columns from strip s.
  __m512i payload(const Input& input, int row, int s) const {
    if constexpr (per_byte == 2) {
      __m512i bytes[2];
      for (int i = 0; i < 2; ++i) {
        const auto even =
            _mm512_srli_epi16(code_words(input, 2 * row, s + i), 8);
        const auto odd =
            _mm512_srli_epi16(code_words(input, 2 * row + 1, s + i), 4);
        // even | (odd & 0xF0)
        bytes[i] = _mm512_ternarylogic_epi32(even, odd, words(0xF0), 0xF8);
      }
      return _mm512_packus_epi16(bytes[0], bytes[1]);
    } else {
      const auto packed = pack_words<F>(
          code_words(input, row, s), code_words(input, row, s + 1));
      if constexpr (F == INT8) {
        return _mm512_max_epi8(packed, _mm512_set1_epi8(-127));
      }
      return packed;
    }
  }
};

// Transposes 16 x 16 bytes in each 128-bit lane. Interleaving the upper with
// the lower half of the rows rotates the 8 bits of (row, column) by one.
inline void transpose_lanes(__m512i (&rows)[16]) {
  for (int round = 0; round < 4; ++round) {
    __m512i next[16];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_unpacklo_epi8(rows[i], rows[i + 8]);
      next[2 * i + 1] = _mm512_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    std::copy(next, next + 16, rows);
  }
}

// 64 rows of 64 bytes, as payload_row packed them, become the lines of 64 columns,
// "step" registers apart.
inline void transpose_bytes(
    const __m512i* rows,
    int64_t row_step,
    __m512i* lines,
    int64_t step) {
  __m512i quarters[4][16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 16; ++j) {
      quarters[i][j] = rows[(16 * i + j) * row_step];
    }
    transpose_lanes(quarters[i]);
  }
  for (int j = 0; j < 16; ++j) {
    const auto a = quarters[0][j];
    const auto b = quarters[1][j];
    const auto c = quarters[2][j];
    const auto d = quarters[3][j];
    const auto ab_low = _mm512_shuffle_i32x4(a, b, 0x44);
    const auto ab_high = _mm512_shuffle_i32x4(a, b, 0xEE);
    const auto cd_low = _mm512_shuffle_i32x4(c, d, 0x44);
    const auto cd_high = _mm512_shuffle_i32x4(c, d, 0xEE);
    // Packing put eight columns of each strip into every lane.
    const int column = j < 8 ? j : 32 + j - 8;
    lines[column * step] = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88);
    lines[(column + 8) * step] = _mm512_shuffle_i32x4(ab_low, cd_low, 0xDD);
    lines[(column + 16) * step] = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88);
    lines[(column + 24) * step] = _mm512_shuffle_i32x4(ab_high, cd_high, 0xDD);
  }
}

template <int F, typename In, bool stream>
void quantize_columns(
    const QuantizeJob& job,
    const Tile& tile,
    Columns<F, In>& columns) {
  constexpr int block_bytes = Columns<F, In>::block_bytes;
  constexpr int lines_per_column = Columns<F, In>::payload_rows / 64;
  const auto* base = static_cast<const typename In::raw*>(job.input) +
      tile.offset + tile.block_begin * 32 * job.stride;
  const auto count = static_cast<int>(tile.count);
  const auto blocks = static_cast<int>(tile.block_end - tile.block_begin);
  const auto block_of = [&](int column) {
    return (tile.first + column * tile.row_step) * job.blocks_per_row +
        tile.block_begin;
  };
  for (int c = 0; c < blocks; ++c) {
    const typename Columns<F, In>::Input input{
        base + c * 32 * job.stride, job.stride, count};
    columns.quantize_block(input, c, job.addend);
  }

  const int bytes = blocks * block_bytes;
  for (int first = 0; first < count; first += 64) {
    __m512i lines[64][lines_per_column];
    for (int i = 0; 64 * i < bytes; ++i) {
      constexpr int64_t row_step = Columns<F, In>::strips / 2;
      const auto* rows = &columns.codes[64 * i][first / 64];
      transpose_bytes(rows, row_step, &lines[0][i], lines_per_column);
    }
    for (int column = first; column < std::min(first + 64, count); ++column) {
      uint8_t* target = job.payload + block_of(column) * block_bytes;
      const auto& source = lines[column - first];
      if constexpr (stream) {
        for (int i = 0; 64 * i < bytes; ++i) {
          store512<true>(target + 64 * i, source[i]);
        }
      } else {
        std::memcpy(target, source, bytes);
      }
    }
  }

  for (int column = 0; column < count; ++column) {
    const int64_t block = block_of(column);
    for (int c = 0; c < blocks; ++c) {
      uint8_t byte = columns.scale[c][column];
      if (columns.special[c][column / 32] >> (column % 32) & 1) {
        byte = quantize_block<F, In>(
            base + c * 32 * job.stride + column,
            job.stride,
            32,
            job.addend,
            job.payload + (block + c) * block_bytes);
      }
      job.put_scale(block + c, byte);
    }
  }
}

#endif // CPU_CAPABILITY_AVX512

template <int F, typename In>
void quantize_tile(const QuantizeJob& job, const Tile& tile) {
  const int64_t bytes = payload_bytes<F>(job.block_size);
  const auto* base = static_cast<const typename In::raw*>(job.input) + tile.offset;
  for (int64_t c = tile.block_begin; c < tile.block_end; ++c) {
    for (const auto i : c10::irange(tile.count)) {
      const int64_t block =
          (tile.first + i * tile.row_step) * job.blocks_per_row + c;
      const uint8_t byte = quantize_block<F, In>(
          base + i * tile.row_stride + c * job.block_size * job.stride,
          job.stride,
          job.block_size,
          job.addend,
          job.payload + block * bytes);
      job.put_scale(block, byte);
    }
  }
}

// Elements a thread should have at least; at::internal::GRAIN_SIZE is for
// kernels that do one operation on each.
constexpr int64_t kGrainElements = 16384;

// Streaming stores bypass the caches, which pays where the output would not
// stay in them anyway. Not above: allocations of 32 MiB and more are mapped anew
// each time (glibc's largest threshold), and the kernel's zeroing of a new page
// has just brought it into the cache.
constexpr int64_t kStreamFrom = int64_t{4} << 20;
constexpr int64_t kStreamBelow = int64_t{32} << 20;

template <int F, typename In>
void quantize_linear(const QuantizeJob& job) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  const int64_t group_elements = kGroup * job.block_size;
  const int64_t groups = (blocks + kGroup - 1) / kGroup;
  at::parallel_for(
      0,
      groups,
      std::max<int64_t>(1, kGrainElements / group_elements),
      [&](int64_t begin, int64_t end) {
        quantize_blocks<F, In>(
            job, begin * kGroup, std::min(blocks, end * kGroup));
      });
}

template <int F, typename In>
void quantize_tiled(const QuantizeJob& job) {
  // The dimension along which neighbouring rows lie closest together.
  int64_t inner = 0;
  const auto dims = static_cast<int64_t>(job.rows.sizes.size());
  for (const auto i : c10::irange(dims)) {
    const bool candidate = job.rows.sizes[i] > 1 && job.rows.strides[i] > 0;
    if (job.rows.sizes[inner] == 1 ||
        (candidate && job.rows.strides[i] <= job.rows.strides[inner])) {
      inner = i;
    }
  }
  int64_t row_step = 1;
  for (int64_t i = inner + 1; i < dims; ++i) {
    row_step *= job.rows.sizes[i];
  }
  const int64_t inner_size = job.rows.sizes[inner];
  int64_t tile_rows = kTileRows;
  int64_t tile_bytes = kTileRows;
  int64_t panel = 1; // tiles side by side before those below
#if defined(CPU_CAPABILITY_AVX512)
  const bool by_columns =
      job.block_size == 32 && job.rows.strides[inner] == 1;
  if (by_columns) {
    tile_rows = Columns<F, In>::columns;
    tile_bytes = Columns<F, In>::payload_rows;
    panel = Columns<F, In>::panel;
  }
#endif
  Rows outer = job.rows;
  outer.sizes.erase(outer.sizes.begin() + inner);
  outer.strides.erase(outer.strides.begin() + inner);
  outer.count /= inner_size;

  const int64_t tile_blocks = std::max<int64_t>(
      1, tile_bytes * kMXFormats[F].codes_per_byte() / job.block_size);
  const int64_t row_tiles = (inner_size + tile_rows - 1) / tile_rows;
  const int64_t block_tiles =
      (job.blocks_per_row + tile_blocks - 1) / tile_blocks;
  const int64_t tile_elements = tile_rows * tile_blocks * job.block_size;
  at::parallel_for(
      0,
      outer.count * block_tiles * row_tiles,
      std::max<int64_t>(1, kGrainElements / tile_elements),
      [&](int64_t begin, int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
        // Up to 53 KiB, too much for a stack.
        std::unique_ptr<Columns<F, In>> columns(
            by_columns ? new Columns<F, In> : nullptr);
#endif
        for (const auto index : c10::irange(begin, end)) {
          const int64_t outer_row = index / (row_tiles * block_tiles);
          const int64_t inner_tile = index % (row_tiles * block_tiles);
          const int64_t first_of_panel =
              inner_tile / (panel * block_tiles) * panel;
          const int64_t width = std::min(panel, row_tiles - first_of_panel);
          const int64_t in_panel = inner_tile - first_of_panel * block_tiles;
          const int64_t row_tile = first_of_panel + in_panel % width;
          const int64_t block_tile = in_panel / width;
          Tile tile;
          tile.row_stride = job.rows.strides[inner];
          tile.row_step = row_step;
          tile.count =
              std::min(tile_rows, inner_size - row_tile * tile_rows);
          tile.offset = outer.offset(outer_row) +
              row_tile * tile_rows * tile.row_stride;
          tile.first =
              (outer_row / row_step * inner_size + row_tile * tile_rows) *
                  row_step +
              outer_row % row_step;
          tile.block_begin = block_tile * tile_blocks;
          tile.block_end =
              std::min(tile.block_begin + tile_blocks, job.blocks_per_row);
#if defined(CPU_CAPABILITY_AVX512)
          if (by_columns) {
            const int64_t row_bytes = payload_bytes<F>(job.blocks_per_row * 32);
            if (job.stream && row_bytes % 64 == 0) {
              quantize_columns<F, In, true>(job, tile, *columns);
            } else {
              quantize_columns<F, In, false>(job, tile, *columns);
            }
            continue;
          }
#endif
          quantize_tile<F, In>(job, tile);
        }
#if defined(CPU_CAPABILITY_AVX512)
        if (job.stream) {
          _mm_sfence();
        }
#endif
      });
}

template <int F, typename In>
void quantize_job(const QuantizeJob& job) {
  if (job.stride == 1 || job.rows.count == 1) {
    quantize_linear<F, In>(job);
  } else {
    quantize_tiled<F, In>(job);
  }
}

template <int F>
void quantize_dtype(const QuantizeJob& job, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return quantize_job<F, Float32>(job);
    case ScalarType::BFloat16:
      return quantize_job<F, BFloat16Bits>(job);
    default:
      return quantize_job<F, Float16>(job);
  }
}

// Calls f with the position in the table as a constant.
template <typename Func>
void with_format(const MXFormat& format, Func&& f) {
  switch (&format - kMXFormats.data()) {
    case E4M3:
      return f(std::integral_constant<int, E4M3>{});
    case E5M2:
      return f(std::integral_constant<int, E5M2>{});
    case E2M3:
      return f(std::integral_constant<int, E2M3>{});
    case E3M2:
      return f(std::integral_constant<int, E3M2>{});
    case E2M1:
      return f(std::integral_constant<int, E2M1>{});
    case INT8:
      return f(std::integral_constant<int, INT8>{});
    default:
      TORCH_INTERNAL_ASSERT(false);
  }
}

bool worth_streaming(const void* data, int64_t bytes) {
  return kStreamFrom <= bytes && bytes < kStreamBelow &&
      reinterpret_cast<uintptr_t>(data) % 64 == 0;
}

void quantize_mx_kernel(
    const Tensor& payload,
    const Tensor& scale,
    const Tensor& input,
    const MXFormat& format,
    MXScaleMode mode,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  QuantizeJob job{
      static_cast<uint8_t*>(payload.mutable_data_ptr()),
      static_cast<uint8_t*>(scale.mutable_data_ptr()),
      input.const_data_ptr(),
      mx_rounding_addend(format, mode, kFraction),
      input.size(dim) / block_size,
      block_size,
      input.size(dim) == 1 ? 1 : input.stride(dim),
      Rows(input.sizes(), input.strides(), dim),
      std::nullopt,
      worth_streaming(payload.const_data_ptr(), payload.numel())};
  if (swizzled) {
    job.swizzle.emplace(input.size(-2), job.blocks_per_row);
  }
  with_format(format, [&](auto index) {
    quantize_dtype<index>(job, input.scalar_type());
  });
}

// ---- dequantize ---------------------------------------------------------------

// Float32 bits of every code of a byte. All values are normal or zero there.
template <int F>
constexpr std::array<uint32_t, 256> make_values() {
  constexpr const MXFormat& format = kMXFormats[F];
  std::array<uint32_t, 256> values{};
  for (int byte = 0; byte < 256; ++byte) {
    const int code = byte & (2 * format.sign_bit() - 1);
    const bool negative = (code & format.sign_bit()) != 0;
    int magnitude = code & (format.sign_bit() - 1);
    if (format.twos_complement && negative) {
      magnitude = format.sign_bit() - magnitude;
    }
    uint32_t bits = 0;
    if (format.nan_code != 0 && magnitude > format.max_code) {
      const bool is_inf = format.inf_code != 0 && magnitude == format.inf_code;
      bits = is_inf ? kInf : kQuietNaN;
    } else if (magnitude != 0) {
      // field and fraction of the code, with a leading one shifted into place
      int field = magnitude >> format.mantissa_bits;
      int significand = magnitude & ((1 << format.mantissa_bits) - 1);
      const int leading = 1 << format.mantissa_bits;
      significand += field == 0 ? 0 : leading;
      field = field == 0 ? 1 : field;
      while (significand < leading) {
        significand *= 2;
        --field;
      }
      bits = static_cast<uint32_t>(field + kE8M0Bias - format.bias())
              << kFraction |
          static_cast<uint32_t>(significand - leading)
              << (kFraction - format.mantissa_bits);
    }
    const bool signed_value = negative && bits != kQuietNaN;
    values[byte] = bits | (signed_value ? ~kMagnitude : 0);
  }
  return values;
}

template <int F>
inline constexpr std::array<uint32_t, 256> kValues = make_values<F>();

// Bits of value * 2^(scale - 127), exact or Inf; scale isn't NaN.
inline uint32_t scaled_bits(uint32_t value, int scale) {
  const uint32_t magnitude = value & kMagnitude;
  const uint32_t sign = value & ~kMagnitude;
  if (magnitude == 0 || magnitude >= kInf) {
    return value;
  }
  const int field = static_cast<int>(magnitude >> kFraction) + scale - kE8M0Bias;
  const uint32_t fraction = magnitude & (kMinNormal - 1);
  if (field >= 255) {
    return sign | kInf;
  }
  if (field >= 1) {
    return sign | static_cast<uint32_t>(field) << kFraction | fraction;
  }
  return sign | (fraction | kMinNormal) >> (1 - field);
}

struct ToFloat32 {
  using raw = uint32_t;
  static constexpr raw nan = 0x7FC00000;
  static raw round(uint32_t bits) {
    return bits;
  }
};

struct ToBFloat16 {
  using raw = uint16_t;
  static constexpr raw nan = 0x7FC0;
  static raw round(uint32_t bits) {
    return static_cast<raw>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

struct ToFloat16 {
  using raw = uint16_t;
  static constexpr raw nan = 0x7E00;
  static raw round(uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const auto sign = static_cast<raw>((bits >> 16) & 0x8000);
    // The smallest normal float16 is 2^-14; below, the unit is 2^-24.
    constexpr uint32_t min_normal = 113u << kFraction;
    const uint32_t shift =
        std::min(126u - std::min(magnitude >> kFraction, 126u), 25u);
    const uint32_t significand = (magnitude & (kMinNormal - 1)) | kMinNormal;
    const uint32_t half = shift == 0 ? 0 : (1u << (shift - 1)) - 1;
    const uint32_t subnormal =
        (significand + half + ((significand >> shift) & 1)) >> shift;
    const uint32_t normal =
        (magnitude - (112u << kFraction) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    uint32_t code = magnitude < min_normal ? subnormal : std::min(normal, 0x7C00u);
    code = magnitude > kInf ? nan : code;
    return static_cast<raw>(code | (magnitude > kInf ? 0 : sign));
  }
};

template <int F, typename Out>
void dequantize_block(
    const uint8_t* payload,
    int64_t stride,
    int64_t block_size,
    int scale,
    typename Out::raw* output) {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr const auto& values = kValues<F>;
  // Read as bytes, two elements apart where two share one.
  constexpr int per_byte = format.codes_per_byte();
  const auto code = [&](int64_t i) {
    const uint8_t byte = payload[i / per_byte * stride];
    return per_byte == 1 || i % 2 == 0 ? byte : byte >> 4;
  };
  if (scale == kMXScaleNaN) {
    std::fill(output, output + block_size, Out::nan);
  } else if (scale < format.bias() + format.mantissa_bits || scale == 0) {
    for (const auto i : c10::irange(block_size)) {
      output[i] = Out::round(scaled_bits(values[code(i)], scale));
    }
  } else {
    // Normal factors and normal products (or zero), so a multiplication will do.
    const auto factor =
        c10::bit_cast<float>(static_cast<uint32_t>(scale) << kFraction);
    for (const auto i : c10::irange(block_size)) {
      const float product = c10::bit_cast<float>(values[code(i)]) * factor;
      output[i] = Out::round(c10::bit_cast<uint32_t>(product));
    }
  }
}

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

#if defined(CPU_CAPABILITY_AVX512)

// Values of 32 codes as bfloat16, which holds them all.
template <int F>
struct Lookup {
  static constexpr int entries =
      kMXFormats[F].bits == 8 ? 128 : (kMXFormats[F].bits == 6 ? 64 : 32);
  static constexpr std::array<uint16_t, entries> make() {
    std::array<uint16_t, entries> table{};
    for (int i = 0; i < entries; ++i) {
      // Above a code's bits: whatever lies there in the index.
      table[i] = static_cast<uint16_t>(kValues<F>[i] >> 16);
    }
    return table;
  }
  alignas(64) static constexpr std::array<uint16_t, entries> table = make();

  static __m512i part(int i) {
    return _mm512_load_si512(table.data() + 32 * i);
  }

  static __m512i load(const uint8_t* payload) {
    if constexpr (kMXFormats[F].codes_per_byte() == 2) {
      const auto bytes = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(payload)));
      // The index takes the low five bits of each half.
      const auto index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
      return _mm512_permutexvar_epi16(index, part(0));
    } else {
      const auto index = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(payload)));
      const auto low = _mm512_permutex2var_epi16(part(0), index, part(1));
      if constexpr (entries == 64) {
        return low;
      } else {
        const auto high = _mm512_permutex2var_epi16(part(2), index, part(3));
        const auto is_high = _mm512_test_epi16_mask(index, words(0x40));
        const auto value = _mm512_mask_blend_epi16(is_high, low, high);
        const auto is_number = _mm512_cmple_epu16_mask(value, words(kInf >> 16));
        const auto sign = _mm512_maskz_slli_epi16(is_number, index, 8);
        // value | (sign & 0x8000)
        return _mm512_ternarylogic_epi32(value, sign, words(0x8000), 0xF8);
      }
    }
  }
};

inline __m512 widen_low(__m512i x) {
  const auto index = _mm512_srli_epi16(word_iota(), 1);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, index, x));
}

inline __m512 widen_high(__m512i x) {
  const auto index = _mm512_add_epi16(_mm512_srli_epi16(word_iota(), 1), words(16));
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, index, x));
}

template <typename Out, bool stream>
inline void store_values(typename Out::raw* output, __m512 low, __m512 high) {
  auto* bytes = reinterpret_cast<uint8_t*>(output);
  if constexpr (std::is_same_v<Out, ToFloat32>) {
    store512<stream>(bytes, _mm512_castps_si512(low));
    store512<stream>(bytes + 64, _mm512_castps_si512(high));
  } else if constexpr (std::is_same_v<Out, ToBFloat16>) {
    // A code's value has at most eight significant bits: nothing is cut off.
    const auto x =
        high_halves(_mm512_castps_si512(low), _mm512_castps_si512(high));
    store512<stream>(bytes, x);
  } else {
    constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const auto x = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtps_ph(low, rounding)),
        _mm512_cvtps_ph(high, rounding),
        1);
    store512<stream>(bytes, x);
  }
}

template <int F, typename Out, bool stream>
void dequantize_block_32(
    const uint8_t* payload,
    int scale,
    typename Out::raw* output) {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr int lowest = format.bias() + format.mantissa_bits;
  if (scale < lowest || scale == kMXScaleNaN) {
    dequantize_block<F, Out>(payload, 1, 32, scale, output);
    return;
  }
  __m512 low;
  __m512 high;
  int field = scale;
  if constexpr (F == INT8) {
    const auto* bytes = reinterpret_cast<const __m128i*>(payload);
    low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    field -= format.mantissa_bits;
  } else {
    const auto values = Lookup<F>::load(payload);
    low = widen_low(values);
    high = widen_high(values);
  }
  const auto factor =
      _mm512_castsi512_ps(_mm512_set1_epi32(field << kFraction));
  store_values<Out, stream>(
      output, _mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
}

#endif // CPU_CAPABILITY_AVX512

template <int F, typename Out, bool stream>
void dequantize_range(const DequantizeJob& job, int64_t begin, int64_t end) {
  auto* output = static_cast<typename Out::raw*>(job.output);
  const bool swizzled = job.swizzle.has_value();
  BlockCursor cursor(
      job.rows,
      job.blocks_per_row,
      payload_bytes<F>(job.block_size) * job.stride,
      begin);
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
#if defined(CPU_CAPABILITY_AVX512)
    if (job.block_size == 32 && job.stride == 1) {
      dequantize_block_32<F, Out, stream>(payload, scale, target);
      continue;
    }
#endif
    with_stride(job.stride, [&](auto stride) {
      dequantize_block<F, Out>(payload, stride, job.block_size, scale, target);
    });
  }
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (stream) {
    _mm_sfence();
  }
#endif
}

template <int F, typename Out>
void dequantize_job(const DequantizeJob& job) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  at::parallel_for(
      0,
      blocks,
      std::max<int64_t>(1, kGrainElements / job.block_size),
      [&](int64_t begin, int64_t end) {
        if (job.stream) {
          dequantize_range<F, Out, true>(job, begin, end);
        } else {
          dequantize_range<F, Out, false>(job, begin, end);
        }
      });
}

void dequantize_mx_kernel(
    const Tensor& output,
    const Tensor& payload,
    const Tensor& scale,
    const MXFormat& format,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  DequantizeJob job{
      output.mutable_data_ptr(),
      static_cast<const uint8_t*>(payload.const_data_ptr()),
      static_cast<const uint8_t*>(scale.const_data_ptr()),
      output.size(dim) / block_size,
      block_size,
      payload.size(dim) == 1 ? 1 : payload.stride(dim),
      Rows(payload.sizes(), payload.strides(), dim),
      Rows(scale.sizes(), scale.strides(), dim),
      scale.stride(dim),
      std::nullopt,
      scale.size(dim),
      worth_streaming(output.const_data_ptr(), static_cast<int64_t>(output.nbytes()))};
  if (swizzled) {
    job.swizzle.emplace(output.size(-2), job.blocks_per_row);
  }
  with_format(format, [&](auto index) {
    switch (output.scalar_type()) {
      case ScalarType::Float:
        return dequantize_job<index, ToFloat32>(job);
      case ScalarType::BFloat16:
        return dequantize_job<index, ToBFloat16>(job);
      default:
        return dequantize_job<index, ToFloat16>(job);
    }
  });
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(quantize_mx_stub, &quantize_mx_kernel)
ALSO_REGISTER_AVX512_DISPATCH(dequantize_mx_stub, &dequantize_mx_kernel)

} // namespace at::native
