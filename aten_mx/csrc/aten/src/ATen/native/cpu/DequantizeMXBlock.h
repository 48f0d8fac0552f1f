#pragma once

// Included by QuantizeMXKernel.cpp alone: dequantization of a range of blocks.

#include <ATen/native/cpu/QuantizeMXJob.h>
#include <ATen/native/cpu/QuantizeMXLanesAvx512.h>

#include <array>

namespace at::native {
namespace {

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
  const int field =
      static_cast<int>(magnitude >> kFraction) + scale - kE8M0Bias;
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
        (magnitude - (112u << kFraction) + 0xFFF + ((magnitude >> 13) & 1)) >>
        13;
    uint32_t code =
        magnitude < min_normal ? subnormal : std::min(normal, 0x7C00u);
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
    // The factor is normal, and the product is normal or zero, so one
    // multiplication is exact.
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
  static constexpr int bits = kMXFormats[F].bits;
  // One for each magnitude of eight bits, else for each code.
  static constexpr int entries =
      kMXFormats[F].codes_per_byte() == 2 ? 32 : (bits <= 6 ? 64 : 128);
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
        if constexpr (bits < 8) {
          return value;
        }
        const auto is_number =
            _mm512_cmple_epu16_mask(value, words(kInf >> 16));
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
  const auto index =
      _mm512_add_epi16(_mm512_srli_epi16(word_iota(), 1), words(16));
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
  if constexpr (format.twos_complement && format.bits == 8) {
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
    with_constant<1>(job.stride, [&](auto stride) {
      dequantize_block<F, Out>(payload, stride, job.block_size, scale, target);
    });
  }
#if defined(CPU_CAPABILITY_AVX512)
  if constexpr (stream) {
    _mm_sfence();
  }
#endif
}

} // namespace
} // namespace at::native
