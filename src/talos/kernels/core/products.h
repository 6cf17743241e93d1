// Register-blocked matrix products: the inner loop of the scores and of both gradients.
#pragma once

#include "words.h"

namespace talos::TALOS_LEVEL {

// sums[r][v] += Σ_k A(r, k) · B[k][v-th vector], for a block that stays in registers. A and B consist of words (words.h),
// and the depth is counted in words. A(r, k) is a[r·lda + k] if kAcross, else a[k·lda + r].
template <int R, int V, bool kAcross>
inline void accumulate(const Word* a, const int64_t lda, const Word* b, const int64_t ldb, const int64_t depth,
                       Vector (&sums)[R][V]) {
    for (int64_t k = 0; k < depth; ++k) {
        Words columns[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) columns[v] = load_words(b + k * ldb + v * kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Words x = splat_word(kAcross ? a[r * lda + k] : a[k * lda + r]);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[r][v] = multiply_add(x, columns[v], sums[r][v]);
        }
    }
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
