// Alternating least squares for implicit feedback (Hu, Koren & Volinsky, ICDM 2008), each row by a few steps of conjugate
// gradients (Takács, Pilászy & Tikk, RecSys 2011): no row's matrix is ever formed.
//
// Half a sweep: for each row r with the entries P_r, a few steps on
//   (G + α Σ_{i∈P_r} w_ri y_i y_iᵀ) x_r = Σ_{i∈P_r} (1 + α w_ri) y_i,   G = Σ_i y_i y_iᵀ + λ·1
// Reads rows, dim, steps, indptr, indices, weights (w, or null: all are 1), table (y), gram (G) and scale (α); out (R, d) has the
// initial values, which are overwritten by the result.
#include <algorithm>

#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr float kSmall = 1e-20f;  // a residual this small cannot be improved in float32

int64_t padded(const int64_t dim) { return round_up(dim, kAlign); }

// image = G x, with four vectors of the result at a time in registers
void times_gram(const Task& task, const float* const x, float* const image) {
    constexpr int64_t kBlock = 4 * kWidth;
    int64_t from = 0;
    for (; from + kBlock <= task.dim; from += kBlock)
        product<1, 4, true>(x, 0, kColumns, task.gram + from, task.dim, task.dim, image + from, 0, false);
    for (; from < task.dim; ++from) image[from] = dot(task.gram + from * task.dim, x, task.dim);  // G is symmetric
}

// image += Σ (α w yᵀx - wanted) y over N entries from `first`, where `wanted` is 1 + α w of an entry, or 0. Together, so
// that x and the image are read and written once, and the sums don't wait for each other.
template <int N>
void add_entries(const Task& task, const int64_t first, const float* const x, const bool wanted,
                 float* const image) {
    const float* y[N];
    float alpha[N];
    for (int n = 0; n < N; ++n) {
        y[n] = task.table + task.indices[first + n] * task.dim;
        alpha[n] = task.weights ? task.scale * task.weights[first + n] : task.scale;
    }
    Vector sums[N] = {};
    int64_t k = 0;
    for (; k + kWidth <= task.dim; k += kWidth) {
        const Vector some = load(x + k);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[n] += load(y[n] + k) * some;
    }
    const int64_t whole = k;
    float factor[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) factor[n] = sum_of(sums[n]);
    for (; k < task.dim; ++k)
        for (int n = 0; n < N; ++n) factor[n] += y[n][k] * x[k];
    for (int n = 0; n < N; ++n) factor[n] = alpha[n] * factor[n] - (wanted ? 1 + alpha[n] : 0.0f);
    for (k = 0; k < whole; k += kWidth) {
        Vector some = load(image + k);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) some += factor[n] * load(y[n] + k);
        store(image + k, some);
    }
    for (; k < task.dim; ++k)
        for (int n = 0; n < N; ++n) image[k] += factor[n] * y[n][k];
}

// image = (G + α Σ w y yᵀ) x, less Σ (1 + α w) y if that is wanted
void apply(const Task& task, const int64_t row, const float* const x, const bool wanted, float* const image) {
    times_gram(task, x, image);
    int64_t i = task.indptr[row];
    const int64_t end = task.indptr[row + 1];
    for (; i + 4 <= end; i += 4) add_entries<4>(task, i, x, wanted, image);
    if (i + 2 <= end) add_entries<2>(task, i, x, wanted, image), i += 2;
    if (i < end) add_entries<1>(task, i, x, wanted, image);
}

// Prefetches the vectors of the next row, which are scattered over memory.
void fetch_entries(const Task& task, const int64_t row) {
    constexpr int64_t most = 32;  // entries; enough to start with in longer rows
    const int64_t end = std::min(task.indptr[row + 1], task.indptr[row] + most);
    for (int64_t i = task.indptr[row]; i < end; ++i) fetch(task.table + task.indices[i] * task.dim, task.dim);
}

// With memory for three vectors.
void solve(const Task& task, const int64_t row, float* const r) {
    float* const x = task.out + row * task.dim;
    if (task.indptr[row] == task.indptr[row + 1]) return std::fill_n(x, task.dim, 0.0f), void();
    float *const p = r + padded(task.dim), *const q = p + padded(task.dim);
    apply(task, row, x, true, q);
    for (int64_t k = 0; k < task.dim; ++k) p[k] = r[k] = -q[k];
    float before = dot(r, r, task.dim);
    for (int64_t step = 0; step < task.steps && before > kSmall; ++step) {
        apply(task, row, p, false, q);
        const float length = before / dot(p, q, task.dim);
        add_scaled(x, length, p, task.dim);
        add_scaled(r, -length, q, task.dim);
        const float after = dot(r, r, task.dim);
        for (int64_t k = 0; k < task.dim; ++k) p[k] = r[k] + after / before * p[k];
        before = after;
    }
}

int64_t threads_of(const Task& task) {
    return threads_for(task, task.rows, (2 * task.indptr[task.rows] + task.dim * task.rows) * task.dim);
}

}  // namespace

const Operation least_squares{
    [](const Task& task) { return threads_of(task) * 3 * padded(task.dim) + kAlign; },
    [](const Task& task) {
        const int64_t threads = threads_of(task);
        float* const base = aligned(task.workspace);
        run_team(task, threads, [&](const int64_t thread) {
            for (int64_t row = thread; row < task.rows; row += threads) {  // neighbours may all be long
                if (row + threads < task.rows) fetch_entries(task, row + threads);
                solve(task, row, base + thread * 3 * padded(task.dim));
            }
        });
    }};

}  // namespace talos::TALOS_LEVEL
