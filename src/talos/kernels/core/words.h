// The factors of products: words of 32 bits, each either one float32 or two bfloat16 that are neighbours along the
// dimension that is summed over. Sums are float32 in both cases.
//
// Words are pairs of bfloat16 in translation units that are compiled with TALOS_PAIRS. (Not wherever the compiler may
// use bfloat16 instructions: with -march=native it may in all of them.)
#pragma once

#include "vector.h"

#if defined(TALOS_PAIRS)
#include <immintrin.h>
#endif

namespace talos::TALOS_LEVEL {

#if defined(TALOS_PAIRS)
typedef uint32_t Word;
typedef Integers Words;
#else
typedef float Word;
typedef Vector Words;
#endif

inline Words load_words(const Word* from) {
    Words w;
    std::memcpy(&w, from, sizeof w);
    return w;
}

inline void store_words(Word* to, const Words w) { std::memcpy(to, &w, sizeof w); }

#if defined(TALOS_PAIRS)

constexpr int kDeep = 2;  // numbers in a word

inline Words splat_word(const Word x) { return static_cast<int32_t>(x) - Words{}; }

inline Vector multiply_add(const Words a, const Words b, const Vector sum) {
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// Consecutive numbers as words in the same order, rounded to the nearest bfloat16.
inline Words in_order(const Vector first, const Vector second) {
    return (Words)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Interleaved: each word holds one number of `first` and one of `second`.
inline Words in_pairs(const Vector first, const Vector second) {
    typedef int16_t Halves __attribute__((vector_size(64)));
    constexpr Halves lanes = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (Words)_mm512_permutexvar_epi16((__m512i)lanes, (__m512i)in_order(first, second));
}

// A row of numbers as words; `count` is a multiple of a vector of words.
inline void pack_row(const float* const from, const int64_t count, Word* const to) {
    for (int64_t k = 0; k < count; k += 2 * kWidth)
        store_words(to + k / 2, in_order(load(from + k), load(from + k + kWidth)));
}

// kDeep rows, `apart` floats from each other, as one row of words, for sums over rows.
inline void pack_rows(const float* const from, const int64_t apart, const int64_t count, Word* const to) {
    for (int64_t k = 0; k < count; k += kWidth) store_words(to + k, in_pairs(load(from + k), load(from + apart + k)));
}

#else

constexpr int kDeep = 1;

inline Words splat_word(const Word x) { return splat(x); }

inline Vector multiply_add(const Words a, const Words b, const Vector sum) { return sum + a * b; }

inline void pack_row(const float* const from, const int64_t count, Word* const to) { std::memcpy(to, from, 4 * count); }

inline void pack_rows(const float* const from, int64_t, const int64_t count, Word* const to) {
    std::memcpy(to, from, 4 * count);
}

#endif

#if defined(TALOS_NEON)
// A factor in one lane of a register, which a product takes from there: factors are loaded by whole vectors, where other
// instruction sets broadcast each from memory.
template <int I>
struct Lane {
    Words of;
};

template <int I>
inline Vector multiply_add(const Lane<I> a, const Words b, const Vector sum) {
    return (Vector)vfmaq_laneq_f32((float32x4_t)sum, (float32x4_t)b, (float32x4_t)a.of, I);
}

template <class Function>
inline void for_lanes(const Function& function) {
    static_assert(kWidth == 4);
    function(std::integral_constant<int, 0>()), function(std::integral_constant<int, 1>());
    function(std::integral_constant<int, 2>()), function(std::integral_constant<int, 3>());
}
#endif

}  // namespace talos::TALOS_LEVEL
