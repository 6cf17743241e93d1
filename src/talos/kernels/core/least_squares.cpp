// Alternating least squares for implicit feedback (Hu, Koren & Volinsky, ICDM 2008), each row by a few steps of conjugate
// gradients (Takács, Pilászy & Tikk, RecSys 2011): no row's matrix is ever formed.
//
// Compiled once per instruction set, see vector.h.
#include <algorithm>
#include <vector>

#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kLine = 16;     // floats in a cache line
constexpr float kSmall = 1e-20f;  // a residual this small cannot be improved in float32

// A thread's workspace for one row.
struct Scratch {
    explicit Scratch(const int64_t dim) : residual(dim), direction(dim), image(dim) {}
    std::vector<float> residual, direction, image;
};

// image = G x, with four vectors of the result at a time in registers
void times_gram(const LeastSquares& task, const float* const x, float* const image) {
    constexpr int64_t kBlock = 4 * kWidth;
    int64_t from = 0;
    for (; from + kBlock <= task.dim; from += kBlock)
        product<1, 4, true>(x, 0, kColumns, task.gram + from, task.dim, task.dim, image + from, 0, false);
    for (; from < task.dim; ++from) image[from] = dot(task.gram + from * task.dim, x, task.dim);  // G is symmetric
}

// image += Σ (α w yᵀx - wanted) y over N entries from `first`, where `wanted` is 1 + α w of an entry, or 0. Together, so
// that x and the image are read and written once, and the sums don't wait for each other.
template <int N>
void add_entries(const LeastSquares& task, const int64_t first, const float* const x, const bool wanted,
                 float* const image) {
    const float* y[N];
    float alpha[N];
    for (int n = 0; n < N; ++n) {
        y[n] = task.fixed + task.items_of[first + n] * task.dim;
        alpha[n] = task.weights ? task.weight * task.weights[first + n] : task.weight;
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
void apply(const LeastSquares& task, const int64_t row, const float* const x, const bool wanted, float* const image) {
    times_gram(task, x, image);
    int64_t i = task.start[row];
    const int64_t end = task.start[row + 1];
    for (; i + 4 <= end; i += 4) add_entries<4>(task, i, x, wanted, image);
    if (i + 2 <= end) add_entries<2>(task, i, x, wanted, image), i += 2;
    if (i < end) add_entries<1>(task, i, x, wanted, image);
}

// Prefetches the vectors of the next row, which are scattered over memory.
void fetch(const LeastSquares& task, const int64_t row) {
    constexpr int64_t most = 32;  // entries; enough to start with in longer rows
    const int64_t end = std::min(task.start[row + 1], task.start[row] + most);
    for (int64_t i = task.start[row]; i < end; ++i) {
        const float* const y = task.fixed + task.items_of[i] * task.dim;
        for (int64_t k = 0; k < task.dim; k += kLine) __builtin_prefetch(y + k);
    }
}

void solve(const LeastSquares& task, const int64_t row, Scratch& scratch) {
    float* const x = task.solution + row * task.dim;
    if (task.start[row] == task.start[row + 1]) return std::fill_n(x, task.dim, 0.0f), void();
    float *const r = scratch.residual.data(), *const p = scratch.direction.data(), *const q = scratch.image.data();
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

}  // namespace

void least_squares(const LeastSquares& task) {
    // A row costs its entries and one product with G: threads get shares of equal cost, not of equal length.
    const auto cost = [&task](const int64_t row) { return 2 * task.start[row] + task.dim * row; };
    const int64_t numbers = cost(task.rows) * task.dim;
    const int64_t threads = std::max<int64_t>(1, std::min(task.threads, numbers / kWorkPerThread));
    run_team(task.team, threads, [&](const int64_t share) {
        const auto bound = [&](const int64_t part) {
            int64_t low = 0, high = task.rows;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                cost(middle) < cost(task.rows) / threads * part ? low = middle + 1 : high = middle;
            }
            return part == threads ? task.rows : low;
        };
        Scratch scratch(task.dim);
        for (int64_t row = bound(share), end = bound(share + 1); row < end; ++row) {
            if (row + 1 < end) fetch(task, row + 1);
            solve(task, row, scratch);
        }
    });
}

}  // namespace talos::TALOS_LEVEL
