// The work around the sweep, vector by vector: normalisation, scores and gradients of positives, Adam. Rows of the batch, items
// or rows of a parameter are divided among the threads; each thread writes only to its own.
#include <algorithm>
#include <cmath>

#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr float kShortest = 1e-12f;  // shorter lengths are raised to this, as in torch
constexpr int64_t kPairsAhead = 4, kAdamAhead = 2;  // vectors that are fetched ahead of their use

void add_to_users(const Task& task, const int64_t from, const int64_t to) {
    for (int64_t u = from; u < to; ++u)
        for (int64_t i = task.indptr[u]; i < task.indptr[u + 1]; ++i)
            add_scaled(task.user_gradient + u * task.dim, task.slopes[i], task.table + task.indices[i] * task.dim,
                       task.dim);
}

// Every thread goes through all users, but only through those of their positives that are its own items.
void add_to_items(const Task& task, const int64_t from, const int64_t to) {
    for (int64_t u = 0; u < task.rows; ++u) {
        const int64_t* const last = task.indices + task.indptr[u + 1];
        const int64_t* one = std::lower_bound(task.indices + task.indptr[u], last, from);
        for (; one < last && *one < to; ++one)
            add_scaled(task.item_gradient + *one * task.dim, task.slopes[one - task.indices],
                       task.users + u * task.dim, task.dim);
    }
}

// From the gradient in v = r/|r| to that in r: (g - ⟨g, v⟩v)/|r|.
void through_lengths(const Task& task, const int64_t from, const int64_t to) {
    for (int64_t j = from; j < to; ++j) {
        float* const g = task.item_gradient + j * task.dim;
        const float* const v = task.table + j * task.dim;
        // Rows of the shortest length were divided by a constant.
        const float along = task.lengths[j] > kShortest ? dot(g, v, task.dim) : 0.0f;
        const float scale = 1 / task.lengths[j];
        for (int64_t k = 0; k < task.dim; ++k) g[k] = (g[k] - along * v[k]) * scale;
    }
}

// Not a loop over std::sqrt: that sets errno for negative numbers, and so is not vectorised.
inline float root(const float x) { return std::sqrt(x); }

inline Vector root(const Vector x) {
#if defined(__AVX512F__)
    return (Vector)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#else
    Vector y = x;
    for (int i = 0; i < kWidth; ++i) y[i] = std::sqrt(x[i]);
    return y;
#endif
}

void fetch(const float* const row, const int64_t dim) {
    for (int64_t k = 0; k < dim; k += 16) __builtin_prefetch(row + k, 1);
}

// The parameters of Adam. Differences from 1 are computed by the caller: float has too few digits for 1 - .999.
struct Adam {
    float rest1, beta2, rest2;  // 1 - β1, β2, 1 - β2
    float epsilon, weight_decay;
    float rate;                 // learning rate / (1 - β1^t)
    float root_correction;      // √(1 - β2^t)

    // One number or vector of a row: g ← g + λp, m ← m + (1-β1)(g - m), v ← β2·v + (1-β2)g², p ← p - rate · m / (√v/√(1-β2^t) + ε).
    template <class Numbers>
    void step(const Numbers gradient, Numbers& p, Numbers& m, Numbers& v) const {
        const Numbers g = gradient + weight_decay * p;
        m = m + rest1 * (g - m);
        v = beta2 * v + rest2 * (g * g);
        p = p - rate * m / (root(v) / root_correction + epsilon);
    }
};

void update_row(const Task& task, const Adam& adam, const int64_t i) {
    const int64_t dim = task.dim, row = task.indices[i] * dim;
    const float* const gradient = task.gradient + i * dim;
    float *const p = task.out + row, *const m = task.mean + row, *const v = task.square + row;
    int64_t k = 0;
    for (; k + kWidth <= dim; k += kWidth) {
        Vector values = load(p + k), mean = load(m + k), square = load(v + k);
        adam.step(load(gradient + k), values, mean, square);
        store(p + k, values), store(m + k, mean), store(v + k, square);
    }
    for (; k < dim; ++k) adam.step(gradient[k], p[k], m[k], v[k]);
}

}  // namespace

// Divides the rows of the table by their lengths. Reads items, dim and table; writes out (I, d) and lengths.
const Operation unit_rows{no_workspace, [](const Task& task) {
    in_parallel(task, task.items, task.items * task.dim, [&](const int64_t from, const int64_t to) {
        for (int64_t j = from; j < to; ++j) {
            const float* const row = task.table + j * task.dim;
            task.lengths[j] = std::fmax(std::sqrt(dot(row, row, task.dim)), kShortest);
            const float scale = 1 / task.lengths[j];
            for (int64_t k = 0; k < task.dim; ++k) task.out[j * task.dim + k] = row[k] * scale;
        }
    });
}};

// Scores of positives: one dot product each. Reads rows, dim, users, table, indptr and indices; writes out (P).
const Operation pair_scores{no_workspace, [](const Task& task) {
    const int64_t count = task.indptr[task.rows];
    in_parallel(task, task.rows, count * task.dim, [&](const int64_t from, const int64_t to) {
        for (int64_t u = from; u < to; ++u)
            for (int64_t i = task.indptr[u]; i < task.indptr[u + 1]; ++i) {
                if (i + kPairsAhead < count) __builtin_prefetch(task.table + task.indices[i + kPairsAhead] * task.dim);
                task.out[i] = dot(task.users + u * task.dim, task.table + task.indices[i] * task.dim, task.dim);
            }
    });
}};

// Adds slopes of positives, whose items ascend in each row, to user_gradient and item_gradient; with lengths, converts the
// latter to the gradient of the rows before normalisation. Reads rows, items, dim, users, table, indptr, indices and slopes.
const Operation add_positives{no_workspace, [](const Task& task) {
    const int64_t count = task.indptr[task.rows];
    in_parallel(task, task.rows, count * task.dim,
                [&task](const int64_t from, const int64_t to) { add_to_users(task, from, to); });
    const int64_t numbers = (count + (task.lengths ? task.items : 0)) * task.dim;
    in_parallel(task, task.items, numbers, [&task](const int64_t from, const int64_t to) {
        add_to_items(task, from, to);
        if (task.lengths) through_lengths(task, from, to);
    });
}};

// One step of Adam for `rows` distinct rows of a parameter, `indices`; no other row is read or written. Reads dim, gradient and
// params, the numbers of Adam above; updates out, mean and square, all of the shape of the parameter.
const Operation adam_rows{no_workspace, [](const Task& task) {
    Adam adam;
    std::memcpy(&adam, task.params, sizeof adam);
    in_parallel(task, task.rows, 4 * task.rows * task.dim, [&](const int64_t from, const int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (i + kAdamAhead < to) {
                const int64_t next = task.indices[i + kAdamAhead] * task.dim;
                fetch(task.out + next, task.dim), fetch(task.mean + next, task.dim), fetch(task.square + next, task.dim);
            }
            update_row(task, adam, i);
        }
    });
}};

}  // namespace talos::TALOS_LEVEL
