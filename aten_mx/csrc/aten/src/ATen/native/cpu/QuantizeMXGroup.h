#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks whose elements are side by
// side, in Lanes, for any block size, format and instruction set.

#include <ATen/native/cpu/QuantizeMXJob.h>
#include <ATen/native/cpu/QuantizeMXLanes.h>

#include <bit>

namespace at::native {
namespace {

// How codes become bytes: what the inner loops are compiled for. Everything
// else of a format is numbers.
enum class Payload {
  bytes,
  nibbles,
  twos_complement
};

template <typename Func>
inline void with_payload(const MXFormat& format, Func&& f) {
  if (format.codes_per_byte() == 2) {
    f(std::integral_constant<Payload, Payload::nibbles>{});
  } else if (format.twos_complement) {
    f(std::integral_constant<Payload, Payload::twos_complement>{});
  } else {
    f(std::integral_constant<Payload, Payload::bytes>{});
  }
}

// From the largest magnitudes of n blocks, a multiple of Lanes::size: their
// scale bytes, and the offsets of their codes. Returns which blocks are
// special: those with NaN or Infinity, and those whose scale is so low that
// subnormals count. The scalar code does them again.
inline uint64_t scales_of(
    const int* amax,
    int n,
    const MXFormat& format,
    const MXEncoding& e,
    MXScaleRule rule,
    uint8_t* scale,
    int* offset) {
  uint64_t special = 0;
  int bytes[64];
  for (int i = 0; i < n; i += Lanes::size) {
    const auto finite = min(Lanes::load(amax + i), Lanes::all(kInf - 1));
    const auto byte =
        min(max(rule.biased_exponent<kFraction>(finite, format), Lanes::all(0)),
            Lanes::all(kE8M0Max));
    byte.store(bytes + i);
    ((byte + -e.bias) << kFraction).store(offset + i);
  }
  for (int i = 0; i < n; ++i) {
    scale[i] = static_cast<uint8_t>(bytes[i]);
    const bool not_finite = amax[i] >= static_cast<int>(kInf);
    const bool is_low = bytes[i] <= e.base;
    special |= uint64_t{not_finite || (is_low && amax[i] != 0)} << i;
    offset[i] = amax[i] == 0 ? kOffsetOfZeros : offset[i];
  }
  return special;
}

// Calls f with each run of the block: its number of registers as a constant,
// its elements, how many of them there are, and its position. A run is 32 or 16
// elements; what is not one is copied into one, with zeros behind.
template <typename In, typename Size, typename Func>
inline void for_each_run(
    const typename In::raw* input,
    int64_t stride,
    Size block_size,
    Func&& f) {
  constexpr std::integral_constant<int, 32 / Lanes::size> whole;
  constexpr std::integral_constant<int, 16 / Lanes::size> half;
  int64_t i = 0;
  if (stride == 1) {
    for (; i + 32 <= block_size; i += 32) {
      f(whole, input + i, 32, i);
    }
    if (i + 16 <= block_size) {
      f(half, input + i, 16, i);
      i += 16;
    }
  }
  for (; i < block_size; i += 16) {
    const auto n = static_cast<int>(std::min<int64_t>(16, block_size - i));
    typename In::raw elements[16] = {};
    for (int k = 0; k < n; ++k) {
      elements[k] = input[(i + k) * stride];
    }
    f(half, elements, n, i);
  }
}

template <typename In, typename Size>
inline int largest_magnitude(
    const typename In::raw* input,
    int64_t stride,
    Size block_size) {
  auto amax = Lanes::all(0);
  const auto read = [&](auto registers, const auto* run, int, int64_t) {
    Lanes x[registers];
    load_run<In>(run, x);
    for (const auto& lanes : x) {
      amax = max(amax, lanes & kMagnitude);
    }
  };
  for_each_run<In>(input, stride, block_size, read);
  return amax.largest();
}

template <Payload payload, typename In, int n>
inline void store_run(
    Lanes (&x)[n],
    Lanes offset,
    const MXEncoding& e,
    uint8_t* out) {
  constexpr bool is_signed = payload == Payload::twos_complement;
  for (auto& lanes : x) {
    const auto code = encode((lanes & kMagnitude) - offset, e);
    lanes = with_sign<is_signed>(code, lanes, e);
  }
  if constexpr (payload == Payload::nibbles) {
    store_nibbles<In>(x, out);
  } else {
    store_bytes<In>(x, out);
  }
}

// Quantizes up to kGroup blocks, block i at inputs[i], to consecutive payload.
template <typename In, Payload payload_kind, typename Size>
void quantize_group(
    const typename In::raw* const* inputs,
    int count,
    int64_t stride,
    Size block_size,
    const MXFormat& format,
    MXScaleRule rule,
    uint8_t* payload,
    uint8_t* scale) {
  constexpr int per_byte = payload_kind == Payload::nibbles ? 2 : 1;
  const MXEncoding e(format);
  alignas(64) int amax[kGroup] = {};
  alignas(64) int offset[kGroup];
  for (int b = 0; b < count; ++b) {
    amax[b] = largest_magnitude<In>(inputs[b], stride, block_size);
  }
  auto special = scales_of(amax, kGroup, format, e, rule, scale, offset);
  const int64_t bytes = block_size / per_byte;
  for (int b = 0; b < count; ++b) {
    uint8_t* out = payload + b * bytes;
    const auto block_offset = Lanes::all(offset[b]);
    const auto write = [&](auto registers, const auto* run, int n, int64_t i) {
      Lanes x[registers];
      load_run<In>(run, x);
      if (n >= 16) {
        store_run<payload_kind, In>(x, block_offset, e, out + i / per_byte);
      } else {
        uint8_t codes[32];
        store_run<payload_kind, In>(x, block_offset, e, codes);
        std::memcpy(out + i / per_byte, codes, n / per_byte);
      }
    };
    for_each_run<In>(inputs[b], stride, block_size, write);
  }
  for (; special != 0; special &= special - 1) {
    const int b = std::countr_zero(special);
    scale[b] = quantize_block<In>(
        inputs[b], stride, block_size, format, rule, payload + b * bytes);
  }
}

} // namespace
} // namespace at::native
