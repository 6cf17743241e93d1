// Register-blocked products: the one inner loop behind the scores and both gradients.
#pragma once

#include "vector.h"

namespace talos::TALOS_LEVEL {

// sums[r][v] += Σ_k A(r, k) · B[k][v-th vector], for a block that stays in registers.
// A(r, k) is a[r·lda + k] if kAcross, else a[k·lda + r].
template <int R, int V, bool kAcross>
inline void accumulate(const float* a, const int64_t lda, const float* b, const int64_t ldb, const int64_t depth,
                       Vector (&sums)[R][V]) {
    for (int64_t k = 0; k < depth; ++k) {
        Vector columns[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) columns[v] = load(b + k * ldb + v * kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Vector x = splat(kAcross ? a[r * lda + k] : a[k * lda + r]);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[r][v] += x * columns[v];
        }
    }
}

// C (R × V vectors, row stride ldc) = or += A · B. Where A runs across, it may lie in chunks of kColumns columns,
// `chunk` floats apart.
template <int R, int V, bool kAcross>
inline void product(const float* a, const int64_t lda, const int64_t chunk, const float* b, const int64_t ldb,
                    const int64_t depth, float* c, const int64_t ldc, const bool add) {
    Vector sums[R][V] = {};
    if (kAcross)
        for (int64_t k = 0; k < depth; k += kColumns) {
            const int64_t some = depth - k < kColumns ? depth - k : kColumns;
            accumulate<R, V, kAcross>(a + k / kColumns * chunk, lda, b + k * ldb, ldb, some, sums);
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
inline void product_rows(const float* a, const int64_t lda, const int64_t chunk, const float* b, const int64_t ldb,
                         const int64_t depth, float* c, const int64_t ldc, const int64_t columns, const bool add) {
    int64_t from = 0;
    for (; from + kColumns <= columns; from += kColumns)
        product<R, 2, kAcross>(a, lda, chunk, b + from, ldb, depth, c + from, ldc, add);
    if (from < columns) product<R, 1, kAcross>(a, lda, chunk, b + from, ldb, depth, c + from, ldc, add);
}

}  // namespace talos::TALOS_LEVEL
