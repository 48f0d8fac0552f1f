#pragma once

// Lanes in portable C++; see QuantizeMXLanes.h.

#include <ATen/native/cpu/QuantizeMXBlock.h>

#include <algorithm>

namespace at::native {
namespace {

struct Lanes {
  static constexpr int size = 4;
  Lane lane[size];

  template <typename Func>
  static Lanes each(Func&& f) {
    Lanes x;
    for (int i = 0; i < size; ++i) {
      x.lane[i] = f(i);
    }
    return x;
  }
  static Lanes all(int x) {
    return each([&](int) { return Lane{x}; });
  }
  static Lanes load(const int* p) {
    return each([&](int i) { return Lane{p[i]}; });
  }
  void store(int* p) const {
    for (int i = 0; i < size; ++i) {
      p[i] = lane[i].value;
    }
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  friend Lanes operator+(Lanes a, int b) {
    return each([&](int i) { return a.lane[i] + b; });
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  friend Lanes operator&(Lanes a, int b) {
    return each([&](int i) { return a.lane[i] & b; });
  }
  friend Lanes operator|(Lanes a, Lanes b) {
    return each([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  friend Lanes operator^(Lanes a, Lanes b) {
    return each([&](int i) { return a.lane[i] ^ b.lane[i]; });
  }
  friend Lanes operator>>(Lanes a, int bits) {
    return each([&](int i) { return a.lane[i] >> bits; });
  }
  friend Lanes operator<<(Lanes a, int bits) {
    return each([&](int i) { return Lane{a.lane[i].value * (1 << bits)}; });
  }
  friend Lanes max(Lanes a, Lanes b) {
    return each([&](int i) { return max(a.lane[i], b.lane[i]); });
  }
  friend Lanes min(Lanes a, Lanes b) {
    return each([&](int i) { return min(a.lane[i], b.lane[i]); });
  }
  // All bits of a lane, or none.
  friend Lanes greater(Lanes a, Lanes b) {
    return each(
        [&](int i) { return Lane{-(a.lane[i].value > b.lane[i].value)}; });
  }
  friend Lanes select(Lanes mask, Lanes a, Lanes b) {
    return each(
        [&](int i) { return mask.lane[i].value ? a.lane[i] : b.lane[i]; });
  }
  friend Lanes min_floats(Lanes a, Lanes b) {
    return each([&](int i) {
      const auto x = c10::bit_cast<float>(a.lane[i].value);
      const auto y = c10::bit_cast<float>(b.lane[i].value);
      return x < y ? a.lane[i] : b.lane[i];
    });
  }
  friend Lanes multiply_floats(Lanes a, Lanes b) {
    return each([&](int i) {
      const auto x = c10::bit_cast<float>(a.lane[i].value);
      return Lane{
          c10::bit_cast<int>(x * c10::bit_cast<float>(b.lane[i].value))};
    });
  }
  friend Lanes to_float(Lanes a) {
    return each([&](int i) {
      return Lane{c10::bit_cast<int>(static_cast<float>(a.lane[i].value))};
    });
  }
  friend Lanes add_floats(Lanes a, Lanes b) {
    return each([&](int i) { return add_floats(a.lane[i], b.lane[i]); });
  }
  int largest() const {
    int result = lane[0].value;
    for (const auto& x : lane) {
      result = std::max(result, x.value);
    }
    return result;
  }
};

template <bool is_signed, int n>
inline void load_bytes(const uint8_t* p, Lanes (&x)[n]) {
  for (auto& lanes : x) {
    lanes = Lanes::each([&](int i) {
      return Lane{is_signed ? static_cast<int8_t>(p[i]) : p[i]};
    });
    p += Lanes::size;
  }
}

template <typename In>
inline Lanes load_bits(const typename In::raw* p) {
  return Lanes::each(
      [&](int i) { return Lane{static_cast<int>(In::bits(p[i]))}; });
}

template <typename In, int n>
inline void load_run(const typename In::raw* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; ++i) {
    x[i] = load_bits<In>(p + Lanes::size * i);
  }
}

template <typename In, int n>
inline void store_bytes(const Lanes (&x)[n], uint8_t* out) {
  for (int i = 0; i < n * Lanes::size; ++i) {
    out[i] =
        static_cast<uint8_t>(x[i / Lanes::size].lane[i % Lanes::size].value);
  }
}

template <typename In, int n>
inline void store_nibbles(const Lanes (&x)[n], uint8_t* out) {
  uint8_t codes[n * Lanes::size];
  store_bytes<In>(x, codes);
  for (int i = 0; i < n * Lanes::size / 2; ++i) {
    out[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

template <typename Out, int n>
inline void store_values(const Lanes (&x)[n], Out, typename Out::raw* out) {
  for (int i = 0; i < n * Lanes::size; ++i) {
    out[i] = Out::round(
        static_cast<uint32_t>(x[i / Lanes::size].lane[i % Lanes::size].value));
  }
}

inline void prefetch_line(uintptr_t /*address*/) {}

struct Bytes {
  uint8_t bytes[16];

  static Bytes load(const uint8_t* p) {
    Bytes x;
    std::memcpy(x.bytes, p, 16);
    return x;
  }
  void store(uint8_t* p) const {
    std::memcpy(p, bytes, 16);
  }
  static Bytes interleave(const Bytes& a, const Bytes& b, int first) {
    Bytes x;
    for (int i = 0; i < 8; ++i) {
      x.bytes[2 * i] = a.bytes[first + i];
      x.bytes[2 * i + 1] = b.bytes[first + i];
    }
    return x;
  }
  friend Bytes interleave_low(const Bytes& a, const Bytes& b) {
    return interleave(a, b, 0);
  }
  friend Bytes interleave_high(const Bytes& a, const Bytes& b) {
    return interleave(a, b, 8);
  }
  friend Bytes low_nibbles(Bytes a) {
    for (auto& byte : a.bytes) {
      byte &= 0xF;
    }
    return a;
  }
  friend Bytes high_nibbles(Bytes a) {
    for (auto& byte : a.bytes) {
      byte >>= 4;
    }
    return a;
  }
};

} // namespace
} // namespace at::native
