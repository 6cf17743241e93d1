// Register-blocked matrix products: the inner loop of the scores and of both gradients.
#pragma once

#include "words.h"

namespace talos::TALOS_LEVEL {

// sums[r][v] += factor(r) · b[v-th vector], for a block that stays in registers; r comes as a constant of its own type.
template <int R, int V, class Factor, int... r>
[[gnu::always_inline]] inline void add_products(const Word* const b, const Factor& factor, Vector (&sums)[R][V],
                                                std::integer_sequence<int, r...>) {
    Words columns[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) columns[v] = load_words(b + v * kWidth);
    const auto add_row = [&](const auto x, Vector(&row)[V]) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) row[v] = multiply_add(x, columns[v], row[v]);
    };
    (add_row(factor(std::integral_constant<int, r>()), sums[r]), ...);
}

// sums[r][v] += Σ_k A(r, k) · B[k][v-th vector]. A and B consist of words (words.h), and the depth is counted in words.
// A(r, k) is a[r·lda + k] if kAcross, else a[k·lda + r].
template <int R, int V, bool kAcross>
[[gnu::always_inline]] inline void accumulate(const Word* a, const int64_t lda, const Word* b, const int64_t ldb,
                                              const int64_t depth, Vector (&sums)[R][V]) {
    constexpr auto all = std::make_integer_sequence<int, R>();
    int64_t k = 0;
#if defined(TALOS_NEON)
    if constexpr (kAcross && R > 1)
        for (; k + kWidth <= depth; k += kWidth) {
            Words rows[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) rows[r] = load_words(a + r * lda + k);
            for_lanes([&](const auto lane) {
                add_products(b + (k + lane) * ldb, [&](const auto r) { return Lane<lane>{rows[r]}; }, sums, all);
            });
        }
    else if constexpr (!kAcross && R % kWidth == 0)
        for (; k < depth; ++k) {
            Words some[R / kWidth];
#pragma GCC unroll 4
            for (int i = 0; i < R / kWidth; ++i) some[i] = load_words(a + k * lda + i * kWidth);
            add_products(b + k * ldb, [&](const auto r) { return Lane<r % kWidth>{some[r / kWidth]}; }, sums, all);
        }
#endif
    for (; k < depth; ++k)
        add_products(
            b + k * ldb, [&](const auto r) { return splat_word(kAcross ? a[r * lda + k] : a[k * lda + r]); }, sums, all);
}

// C (R × V vectors, row stride ldc) = A · B, or += with `add`. With kAcross, A may be stored in chunks of kColumns numbers,
// `chunk` words apart.
template <int R, int V, bool kAcross>
inline void product(const Word* a, const int64_t lda, const int64_t chunk, const Word* b, const int64_t ldb,
                    const int64_t depth, float* c, const int64_t ldc, const bool add) {
    Vector sums[R][V] = {};
    constexpr int64_t kChunk = kColumns / kDeep;
    if (kAcross)
        for (int64_t k = 0; k < depth; k += kChunk) {
            const int64_t some = depth - k < kChunk ? depth - k : kChunk;
            accumulate<R, V, kAcross>(a + k / kChunk * chunk, lda, b + k * ldb, ldb, some, sums);
        }
    else
        accumulate<R, V, kAcross>(a, lda, b, ldb, depth, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            float* const to = c + r * ldc + v * kWidth;
            store(to, add ? load(to) + sums[r][v] : sums[r][v]);
        }
}

// The same for R rows and any number of columns that fills whole vectors.
template <int R, bool kAcross>
inline void product_rows(const Word* a, const int64_t lda, const int64_t chunk, const Word* b, const int64_t ldb,
                         const int64_t depth, float* c, const int64_t ldc, const int64_t columns, const bool add) {
    int64_t from = 0;
    for (; from + kColumns <= columns; from += kColumns)
        product<R, 2, kAcross>(a, lda, chunk, b + from, ldb, depth, c + from, ldc, add);
    if (from < columns) product<R, 1, kAcross>(a, lda, chunk, b + from, ldb, depth, c + from, ldc, add);
}

}  // namespace talos::TALOS_LEVEL
