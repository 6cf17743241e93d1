// Sweeps over samples that groups of users share.
//
// The items that a group has drawn, gathered into a block, are an item table like any other: one thread sweeps it for the
// users of the group (sweep.cpp), while the other threads do the same for other groups. Then the gradients of the blocks are
// added to that of the table, whose rows are split between the threads. A group is always swept by a single thread, and every
// row of the gradient is added up in the order of the groups, so results do not depend on the number of threads.
//
// Compiled once per instruction set, see vector.h.
#include "samples.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kMostGradients = 1 << 24;  // floats of blocks' gradients that are kept until they are added: 64 MB
constexpr int64_t kAhead = 4;                // rows that are fetched ahead of their use

// Sizes, and what each thread finds where in the workspace, in floats.
struct Layout {
    int64_t threads, block, at_once, each, total;

    Layout(const Groups& groups, const SweepFunctions& of) {
        const Task& task = groups.task;
        threads = std::max<int64_t>(1, std::min<int64_t>(task.threads, groups.groups));
        block = round_up(groups.sample * task.dim, kAlign);
        at_once = std::min(groups.groups, std::max(threads, kMostGradients / std::max<int64_t>(1, block)));
        int64_t sweep = 0;
        for (int64_t g = 0; g < groups.groups; ++g) sweep = std::max(sweep, of.workspace_bytes(task_of(groups, g)));
        each = block + round_up(sweep / 4 + 1, kAlign);
        total = threads * each + (task.item_gradient ? at_once * block : 0) + kAlign;
    }

    // The sweep of one group, without the pointers to the block and its gradient.
    static Task task_of(const Groups& groups, const int64_t g) {
        Task task = groups.task;
        const int64_t user = groups.first[g];
        task.users = groups.first[g + 1] - user;
        task.items = groups.sample;
        task.k = 0;
        task.threads = 1;
        task.user_vectors += user * task.dim;
        const auto advance = [user](auto& pointer, const int64_t each) { pointer = pointer ? pointer + user * each : pointer; };
        advance(task.excluded_start, 1);
        advance(task.thresholds, 1);
        advance(task.coefficients, 1);
        advance(task.positive_start, 1);
        advance(task.negative, 1);
        advance(task.normalizer, 1);
        advance(task.user_gradient, task.dim);
        advance(task.moments, 2);
        return task;
    }
};

void gather(const Groups& groups, const int64_t g, float* const block) {
    const int64_t dim = groups.task.dim;
    const int64_t* const drawn = groups.drawn + g * groups.sample;
    for (int64_t j = 0; j < groups.sample; ++j) {
        if (j + kAhead < groups.sample) __builtin_prefetch(groups.task.item_vectors + drawn[j + kAhead] * dim);
        std::copy_n(groups.task.item_vectors + drawn[j] * dim, dim, block + j * dim);
    }
}

// Adds the gradients of the blocks of groups `first` … `last` to rows `from` … `to` of the table's gradient.
void add_blocks(const Groups& groups, const float* const gradients, const int64_t block, const int64_t first,
                const int64_t last, const int64_t from, const int64_t to) {
    const int64_t dim = groups.task.dim;
    for (int64_t g = first; g < last; ++g)
        for (int64_t j = 0; j < groups.sample; ++j) {
            const int64_t row = groups.drawn[g * groups.sample + j];
            if (row >= from && row < to)
                add_scaled(groups.task.item_gradient + row * dim, 1.0f, gradients + (g - first) * block + j * dim, dim);
        }
}

// The vectors of `width` items, dimension by dimension; what completes a register block is 0.
void pack_items(const Groups& groups, const int64_t* const drawn, const int64_t width, float* const rows, float* const packed) {
    const int64_t dim = groups.task.dim, whole = dim / kWidth * kWidth;
    for (int64_t c = 0; c < kColumns; ++c) {
        if (c < width) std::copy_n(groups.task.item_vectors + drawn[c] * dim, dim, rows + c * dim);
        else std::fill_n(rows + c * dim, dim, 0.0f);
    }
    transpose(rows, dim, packed, kColumns, kColumns, whole);
    for (int64_t k = whole; k < dim; ++k)
        for (int64_t c = 0; c < kColumns; ++c) packed[k * kColumns + c] = rows[c * dim + k];
}

// Scores of R users with one register block of items, of which `width` are wanted.
template <int R>
void score_users(const float* const users, const int64_t dim, const float* const items, float* const to, const int64_t apart,
                 const int64_t width) {
    Vector sums[R][2] = {};
    accumulate<R, 2, true>(users, dim, items, kColumns, dim, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        if (width == kColumns) {
            store(to + r * apart, sums[r][0]);
            store(to + r * apart + kWidth, sums[r][1]);
            continue;
        }
        float some[kColumns];
        store(some, sums[r][0]);
        store(some + kWidth, sums[r][1]);
        std::copy_n(some, width, to + r * apart);
    }
}

void score_group(const Groups& groups, const int64_t g, float* const rows, float* const packed) {
    const int64_t dim = groups.task.dim, first = groups.first[g], last = groups.first[g + 1];
    for (int64_t from = 0; from < groups.sample; from += kColumns) {
        const int64_t width = std::min<int64_t>(kColumns, groups.sample - from);
        pack_items(groups, groups.drawn + g * groups.sample + from, width, rows, packed);
        const auto score = [&](const int64_t u, const auto count) {
            score_users<count>(groups.task.user_vectors + u * dim, dim, packed, groups.scores + u * groups.sample + from,
                               groups.sample, width);
        };
        int64_t u = first;
        for (; u + kRows <= last; u += kRows) score(u, std::integral_constant<int, kRows>());
        for (; u < last; ++u) score(u, std::integral_constant<int, 1>());
    }
}

}  // namespace

int64_t group_workspace_bytes(const Groups& groups, const SweepFunctions& of) { return Layout(groups, of).total * 4; }

void group_sweep(const Groups& groups, const SweepFunctions& of) {
    const Layout at(groups, of);
    const Task& whole = groups.task;
    float* const base = aligned(whole.workspace);
    float* const gradients = base + at.threads * at.each;
    for (int64_t first = 0; first < groups.groups; first += at.at_once) {
        const int64_t last = std::min(first + at.at_once, groups.groups);
        run_team(whole.team, at.threads, [&](const int64_t thread) {
            float* const own = base + thread * at.each;
            for (int64_t g = first + thread; g < last; g += at.threads) {
                Task task = Layout::task_of(groups, g);
                if (task.users == 0) {
                    if (whole.item_gradient) std::fill_n(gradients + (g - first) * at.block, groups.sample * whole.dim, 0.0f);
                    continue;
                }
                gather(groups, g, own);
                task.item_vectors = own;
                task.item_gradient = whole.item_gradient ? gradients + (g - first) * at.block : nullptr;
                task.workspace = own + at.block;
                of.sweep(task);
            }
        });
        if (!whole.item_gradient) continue;
        const int64_t numbers = ((last - first) * groups.sample + (first ? 0 : whole.items)) * whole.dim;
        in_parallel(whole.team, whole.items, numbers, whole.threads, [&](const int64_t from, const int64_t to) {
            if (first == 0) std::fill(whole.item_gradient + from * whole.dim, whole.item_gradient + to * whole.dim, 0.0f);
            add_blocks(groups, gradients, at.block, first, last, from, to);
        });
    }
}

void group_scores(const Groups& groups) {
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(groups.task.threads, groups.groups));
    run_team(groups.task.team, threads, [&](const int64_t thread) {
        std::vector<float> rows(kColumns * groups.task.dim), packed(kColumns * groups.task.dim);
        for (int64_t g = thread; g < groups.groups; g += threads) score_group(groups, g, rows.data(), packed.data());
    });
}

void pair_scores(const Pairs& task) {
    const int64_t count = task.start[task.users];
    in_parallel(task.team, task.users, count * task.dim, task.threads, [&](const int64_t from, const int64_t to) {
        for (int64_t u = from; u < to; ++u)
            for (int64_t i = task.start[u]; i < task.start[u + 1]; ++i) {
                if (i + kAhead < count) __builtin_prefetch(task.item_vectors + task.items_of[i + kAhead] * task.dim);
                task.scores[i] = dot(task.user_vectors + u * task.dim, task.item_vectors + task.items_of[i] * task.dim, task.dim);
            }
    });
}

}  // namespace talos::TALOS_LEVEL
