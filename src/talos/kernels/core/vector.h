// Vectors as wide as the instruction set of this translation unit, by compiler extensions (gcc, clang).
#pragma once

#include <cstdint>
#include <cstring>

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
    Integers bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000;
    Vector power;
    std::memcpy(&power, &bits, sizeof power);
    return polynomial(c, rest) * power;
}

// The same for any t up to 127; exactly 0 below -127.
inline Vector exp2(const Vector t) { return exp2_within(t < -127.0f ? splat(-127.0f) : t); }

// The sum of a vector's elements, by halves: added one by one, each addition would wait for the last.
inline float sum_of(const Vector v) {
#if defined(__AVX512F__) && defined(TALOS_SHUFFLES)  // the same, within registers
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Four __attribute__((vector_size(16)));
    const Eight eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                        __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    const Four four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
#else
    float parts[kWidth];
    store(parts, v);
#pragma GCC unroll 4
    for (int half = kWidth / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
#endif
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

}  // namespace talos::TALOS_LEVEL
