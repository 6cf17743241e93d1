// Vectors as wide as the instruction set of this translation unit, by compiler extensions (gcc, clang). Every source but
// dispatch.cpp is compiled once per instruction set, TALOS_LEVEL.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(TALOS_NEON)
#include <arm_neon.h>
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TALOS_SHUFFLES
#endif
#endif

#ifndef TALOS_LEVEL
#define TALOS_LEVEL plain
#endif

namespace talos::TALOS_LEVEL {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector
constexpr int kRows = 8;    // rows of a register block: 8 × 2 vectors of sums leave room for the operands
#elif defined(__AVX2__)
constexpr int kWidth = 8;
constexpr int kRows = 4;
#elif defined(TALOS_NEON)
constexpr int kWidth = 4;
constexpr int kRows = 8;    // there are 32 registers, as with AVX-512
#else
constexpr int kWidth = 4;
constexpr int kRows = 4;
#endif
constexpr int kColumns = 2 * kWidth;  // columns of a register block

typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int32_t Integers __attribute__((vector_size(4 * kWidth)));

inline Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, const Vector v) { std::memcpy(to, &v, sizeof v); }

// Not `Vector{} + x`: that would turn -0 into 0, so the compiler could not optimise the addition away.
inline Vector splat(const float x) { return x - Vector{}; }

// A NaN in `b` is kept, one in `a` is not.
inline Vector maximum(const Vector a, const Vector b) { return a > b ? a : b; }

inline Vector minimum(const Vector a, const Vector b) { return a < b ? a : b; }

// 1/y with a relative error of 1e-7, for y between 1e-30 and 1e30; several times as fast as a division where there is an
// instruction for an estimate.
inline Vector reciprocal(const Vector y) {
#if defined(__AVX512F__)
    const Vector estimate = (Vector)_mm512_maskz_rcp14_ps(0xffff, (__m512)y);
    return estimate * (2.0f - y * estimate);
#else
    return 1.0f / y;
#endif
}

// c0 + c1·x + c2·x² + …, by Horner's rule.
template <int N>
inline Vector polynomial(const float (&c)[N], const Vector x) {
    Vector sum = splat(c[N - 1]);
#pragma GCC unroll 16
    for (int i = N - 2; i >= 0; --i) sum = sum * x + c[i];
    return sum;
}

// 2^t with a relative error of 2e-7, for t from -126 to 127. NaN gives NaN.
inline Vector exp2_within(const Vector t) {
    // Minimax on [-1/2, 1/2].
    constexpr float c[] = {1.00000012f,   0.693146944f,   0.240221202f,
                           0.0555071346f, 0.00967554096f, 0.00132764608f};
    constexpr float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, kept in the low bits
    const Vector shifted = t + magic;
    const Vector rest = t - (shifted - magic);
    const Integers power = ((Integers)shifted << 23) + 0x3f800000;  // a cast between vectors keeps the bits
    return polynomial(c, rest) * (Vector)power;
}

// The same for any t up to 127; exactly 0 below -127.
inline Vector exp2(const Vector t) { return exp2_within(t < -127.0f ? splat(-127.0f) : t); }

// Combines a vector's elements by halves: one by one, each step would wait for the last.
template <class Combine>
inline float by_halves(const Vector v, const Combine& combine) {
    float parts[kWidth];
    store(parts, v);
#pragma GCC unroll 4
    for (int half = kWidth / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) parts[i] = combine(parts[i], parts[i + half]);
    return parts[0];
}

inline float sum_of(const Vector v) {
#if defined(__AVX512F__) && defined(TALOS_SHUFFLES)  // the same, within registers
    typedef float Eight __attribute__((vector_size(32)));
    const Eight a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
    return (b[0] + b[2]) + (b[1] + b[3]);
#else
    return by_halves(v, [](const float a, const float b) { return a + b; });
#endif
}

inline float largest_of(const Vector v) {
    return by_halves(v, [](const float a, const float b) { return a > b ? a : b; });
}

#if defined(TALOS_SHUFFLES)
// Exchanges the blocks of H rows and H columns that lie across the diagonal of 2H × 2H blocks.
template <int H, size_t... I>
inline void exchange(Vector& upper, Vector& lower, std::index_sequence<I...>) {
    const Vector a = upper, b = lower;
    upper = __builtin_shufflevector(a, b, (static_cast<int>(I) & H ? kWidth + static_cast<int>(I) - H : static_cast<int>(I))...);
    lower = __builtin_shufflevector(a, b, (static_cast<int>(I) & H ? kWidth + static_cast<int>(I) : static_cast<int>(I) + H)...);
}

template <int H>
inline void exchange_blocks(Vector (&rows)[kWidth]) {
#pragma GCC unroll 16
    for (int r = 0; r < kWidth; ++r)
        if (!(r & H)) exchange<H>(rows[r], rows[r + H], std::make_index_sequence<kWidth>());
    if constexpr (H > 1) exchange_blocks<H / 2>(rows);
}
#endif

// to[c·to_apart + r] = from[r·from_apart + c] for whole vectors of rows and columns.
inline void transpose(const float* const from, const int64_t from_apart, float* const to, const int64_t to_apart,
                      const int64_t height, const int64_t width) {
    for (int64_t r = 0; r < height; r += kWidth)
        for (int64_t c = 0; c < width; c += kWidth) {
#if defined(TALOS_SHUFFLES)
            Vector rows[kWidth];
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) rows[i] = load(from + (r + i) * from_apart + c);
            exchange_blocks<kWidth / 2>(rows);
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) store(to + (c + i) * to_apart + r, rows[i]);
#else
            for (int64_t i = 0; i < kWidth; ++i)
                for (int64_t k = 0; k < kWidth; ++k) to[(c + k) * to_apart + r + i] = from[(r + i) * from_apart + c + k];
#endif
        }
}

// Σ a·b.
inline float dot(const float* const a, const float* const b, const int64_t dim) {
    Vector even{}, odd{};
    int64_t k = 0;
    for (; k + 2 * kWidth <= dim; k += 2 * kWidth) {
        even += load(a + k) * load(b + k);
        odd += load(a + k + kWidth) * load(b + k + kWidth);
    }
    for (; k + kWidth <= dim; k += kWidth) even += load(a + k) * load(b + k);
    float sum = sum_of(even + odd);
    for (; k < dim; ++k) sum += a[k] * b[k];
    return sum;
}

inline void add_scaled(float* const to, const float factor, const float* const from, const int64_t dim) {
    int64_t k = 0;
    for (; k + kWidth <= dim; k += kWidth) store(to + k, load(to + k) + factor * load(from + k));
    for (; k < dim; ++k) to[k] += factor * from[k];
}

constexpr int64_t kAlign = 16;  // floats in a cache line

inline void fetch(const float* const row, const int64_t dim) {
    for (int64_t k = 0; k < dim; k += kAlign) __builtin_prefetch(row + k);
}

inline int64_t round_up(const int64_t n, const int64_t unit) { return (n + unit - 1) / unit * unit; }

// The first cache line at or after an address: a workspace is larger by one.
inline float* aligned(float* const p) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p));
    return p + (round_up(address, 4 * kAlign) - address) / 4;
}

}  // namespace talos::TALOS_LEVEL
