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

// g ← g + λp, m ← m + (1-β1)(g - m), v ← β2·v + (1-β2)g², p ← p - rate · m / (√v/√(1-β2^t) + ε) with the i-th gradient, in
// vectors by the compiler.
void update_row(const Task& task, const int64_t i) {
    const auto [rest1, beta2, rest2, epsilon, weight_decay, rate, root_correction] = reinterpret_cast<const float(&)[7]>(*task.params);
    const int64_t row = task.indices[i] * task.dim;
    const float* const __restrict gradient = task.gradient + i * task.dim;
    float *const __restrict p = task.out + row, *const __restrict m = task.mean + row, *const __restrict v = task.square + row;
    for (int64_t k = 0; k < task.dim; ++k) {
        const float g = gradient[k] + weight_decay * p[k];
        m[k] += rest1 * (g - m[k]);
        v[k] = beta2 * v[k] + rest2 * (g * g);
        p[k] -= rate * m[k] / (std::sqrt(v[k]) / root_correction + epsilon);
    }
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

// Adds slopes of positives, whose items ascend in each row, to user_gradient, unless it is null, and item_gradient; with lengths,
// converts the latter to the gradient of the rows before normalisation. Reads rows, items, dim, users, table, indptr, indices and slopes.
const Operation add_positives{no_workspace, [](const Task& task) {
    const int64_t count = task.indptr[task.rows];
    if (task.user_gradient)
        in_parallel(task, task.rows, count * task.dim,
                    [&task](const int64_t from, const int64_t to) { add_to_users(task, from, to); });
    const int64_t numbers = (count + (task.lengths ? task.items : 0)) * task.dim;
    in_parallel(task, task.items, numbers, [&task](const int64_t from, const int64_t to) {
        add_to_items(task, from, to);
        if (task.lengths) through_lengths(task, from, to);
    });
}};

// One step of Adam for `rows` distinct rows of a parameter, `indices`; no other row is read or written. Reads dim, gradient and
// params: 1 - β1, β2, 1 - β2 (float has too few digits for 1 - .999), ε, weight decay λ, rate (the learning rate / (1 - β1^t))
// and √(1 - β2^t). Updates out, mean and square, all of the shape of the parameter.
const Operation adam_rows{no_workspace, [](const Task& task) {
    in_parallel(task, task.rows, 4 * task.rows * task.dim, [&](const int64_t from, const int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (i + kAdamAhead < to)
                for (const float* const table : {task.out, task.mean, task.square})
                    fetch(table + task.indices[i + kAdamAhead] * task.dim, task.dim);
            update_row(task, i);
        }
    });
}};

}  // namespace talos::TALOS_LEVEL
