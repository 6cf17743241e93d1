// A sweep over samples of items that consecutive users (rows of the batch) have in common.
//
// Reads what sweep.cpp reads, and samples, sample_size, bounds and drawn; `excluded` are positions in the user's sample, and the
// K best scores are not found. The drawn items, gathered into a block, are an item table like any other: one thread sweeps it
// for the users of the sample, while the other threads do the same for other samples. Then the gradients of the blocks are added
// to that of the table, whose rows are divided among the threads. A sample is always swept by a single thread, and every row of
// the gradient is added up in the order of the samples, so results do not depend on the number of threads.
#include <algorithm>

#include "losses.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kMostGradients = 1 << 24;  // floats of blocks' gradients that are kept until they are added: 64 MB
constexpr int64_t kAhead = 4;                // rows that are fetched ahead of their use

// The sweep of one sample, without the pointers to the block and its gradient.
Task task_of(const Task& whole, const int64_t g) {
    Task task = whole;
    const int64_t user = whole.bounds[g];
    task.rows = whole.bounds[g + 1] - user;
    task.items = whole.sample_size;
    task.k = 0;
    task.threads = 1;
    task.users += user * task.dim;
    const auto advance = [user](auto& pointer, const int64_t each) { pointer = pointer ? pointer + user * each : pointer; };
    advance(task.excluded_start, 1);
    advance(task.thresholds, 1);
    advance(task.user_gradient, task.dim);
    if (kTraits[task.kind].pairs) return advance(task.indptr, 1), task;
    advance(task.weights, 1);
    advance(task.sums, 1);
    advance(task.normalizer, 1);
    return task;
}

// Sizes, and what is where in the workspace, in floats.
struct Layout {
    int64_t threads, block, at_once, each, gradients, parameters, total;

    explicit Layout(const Task& task) {
        threads = std::max<int64_t>(1, std::min(task.threads, task.samples));
        block = round_up(task.sample_size * task.dim, kAlign);
        at_once = std::min(task.samples, std::max(threads, kMostGradients / std::max<int64_t>(1, block)));
        at_once = std::max<int64_t>(1, at_once);
        int64_t most = 0;
        for (int64_t g = 0; g < task.samples; ++g) most = std::max(most, sweep.workspace(task_of(task, g)));
        each = block + round_up(most + 1, kAlign);
        gradients = threads * each;
        parameters = gradients + (task.gradients ? at_once * block : 0);
        total = parameters + at_once * kTraits[task.kind].params + kAlign;
    }
};

void gather(const Task& task, const int64_t g, float* const block) {
    const int64_t* const drawn = task.drawn + g * task.sample_size;
    for (int64_t j = 0; j < task.sample_size; ++j) {
        if (j + kAhead < task.sample_size) __builtin_prefetch(task.table + drawn[j + kAhead] * task.dim);
        std::copy_n(task.table + drawn[j] * task.dim, task.dim, block + j * task.dim);
    }
}

// Adds the gradients of the blocks of samples `first` … `last` to rows `from` … `to` of the table's gradient.
void add_blocks(const Task& task, const float* const gradients, const int64_t block, const int64_t first, const int64_t last,
                const int64_t from, const int64_t to) {
    for (int64_t g = first; g < last; ++g)
        for (int64_t j = 0; j < task.sample_size; ++j) {
            const int64_t row = task.drawn[g * task.sample_size + j];
            if (row >= from && row < to)
                add_scaled(task.item_gradient + row * task.dim, 1.0f, gradients + (g - first) * block + j * task.dim, task.dim);
        }
}

void run(const Task& whole) {
    const Layout at(whole);
    const int64_t params = kTraits[whole.kind].learnt && whole.gradients ? kTraits[whole.kind].params : 0;
    float *const base = aligned(whole.workspace), *const gradients = base + at.gradients;
    std::fill_n(whole.parameter_gradient, params, 0.0f);
    for (int64_t first = 0; first == 0 || first < whole.samples; first += at.at_once) {
        const int64_t last = std::min(first + at.at_once, whole.samples);
        run_team(whole, at.threads, [&](const int64_t thread) {
            float* const own = base + thread * at.each;
            for (int64_t g = first + thread; g < last; g += at.threads) {
                Task task = task_of(whole, g);
                task.table = own;
                task.item_gradient = gradients + (g - first) * at.block;
                task.parameter_gradient = base + at.parameters + (g - first) * params;
                task.workspace = own + at.block;
                gather(whole, g, own);
                sweep.run(task);
            }
        });
        for (int64_t g = first; g < last; ++g)
            for (int64_t p = 0; p < params; ++p)
                whole.parameter_gradient[p] += base[at.parameters + (g - first) * params + p];
        if (!whole.gradients) continue;
        const int64_t numbers = ((last - first) * whole.sample_size + (first ? 0 : whole.items)) * whole.dim;
        in_parallel(whole, whole.items, numbers, [&](const int64_t from, const int64_t to) {
            if (first == 0) std::fill(whole.item_gradient + from * whole.dim, whole.item_gradient + to * whole.dim, 0.0f);
            add_blocks(whole, gradients, at.block, first, last, from, to);
        });
    }
}

}  // namespace

const Operation sample_sweep{[](const Task& task) { return Layout(task).total; }, run};

}  // namespace talos::TALOS_LEVEL
