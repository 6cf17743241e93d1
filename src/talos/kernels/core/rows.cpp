// The work around the sweep: normalisation of rows, the positives' gradient, and the gradient's conversion to that of the
// rows before normalisation. Items and users are split between the threads; each thread writes only to its own.
//
// Compiled once per instruction set, see vector.h.
#include <algorithm>
#include <cmath>

#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr float kShortest = 1e-12f;  // shorter lengths are raised to this, as in torch

void add_to_users(const Positives& task, const int64_t from, const int64_t to) {
    for (int64_t u = from; u < to; ++u)
        for (int64_t i = task.start[u]; i < task.start[u + 1]; ++i)
            add_scaled(task.user_gradient + u * task.dim, task.slopes[i], task.item_vectors + task.items_of[i] * task.dim,
                       task.dim);
}

// Every thread goes through all users, but only through those of their positives that are its own items.
void add_to_items(const Positives& task, const int64_t from, const int64_t to) {
    for (int64_t u = 0; u < task.users; ++u) {
        const int64_t* const last = task.items_of + task.start[u + 1];
        const int64_t* one = std::lower_bound(task.items_of + task.start[u], last, from);
        for (; one < last && *one < to; ++one)
            add_scaled(task.item_gradient + *one * task.dim, task.slopes[one - task.items_of],
                       task.user_vectors + u * task.dim, task.dim);
    }
}

// From the gradient in v = r/|r| to that in r: (g - ⟨g, v⟩v)/|r|.
void through_lengths(const Positives& task, const int64_t from, const int64_t to) {
    for (int64_t j = from; j < to; ++j) {
        float* const g = task.item_gradient + j * task.dim;
        const float* const v = task.item_vectors + j * task.dim;
        // Rows of the shortest length were divided by a constant.
        const float along = task.lengths[j] > kShortest ? dot(g, v, task.dim) : 0.0f;
        const float scale = 1 / task.lengths[j];
        for (int64_t k = 0; k < task.dim; ++k) g[k] = (g[k] - along * v[k]) * scale;
    }
}

}  // namespace

void unit_rows(const Rows& task) {
    in_parallel(task.team, task.count, task.count * task.dim, task.threads, [&](const int64_t from, const int64_t to) {
        for (int64_t j = from; j < to; ++j) {
            const float* const row = task.rows + j * task.dim;
            task.lengths[j] = std::fmax(std::sqrt(dot(row, row, task.dim)), kShortest);
            const float scale = 1 / task.lengths[j];
            for (int64_t k = 0; k < task.dim; ++k) task.unit[j * task.dim + k] = row[k] * scale;
        }
    });
}

void add_positives(const Positives& task) {
    in_parallel(task.team, task.users, task.start[task.users] * task.dim, task.threads,
                [&task](const int64_t from, const int64_t to) { add_to_users(task, from, to); });
    const int64_t numbers = (task.start[task.users] + (task.lengths ? task.items : 0)) * task.dim;
    in_parallel(task.team, task.items, numbers, task.threads, [&task](const int64_t from, const int64_t to) {
        add_to_items(task, from, to);
        if (task.lengths) through_lengths(task, from, to);
    });
}

}  // namespace talos::TALOS_LEVEL
