// Samples of items that consecutive users (rows of the batch) have in common: scores, and which of the items are positives.
// Both operations read rows, samples, sample_size, bounds and drawn.
#include <algorithm>

#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

// The vectors of `width` items, dimension by dimension; what completes a register block is 0.
void pack_items(const Task& task, const int64_t* const drawn, const int64_t width, float* const rows, float* const packed) {
    const int64_t dim = task.dim, whole = dim / kWidth * kWidth;
    for (int64_t c = 0; c < kColumns; ++c) {
        if (c < width) std::copy_n(task.table + drawn[c] * dim, dim, rows + c * dim);
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
    constexpr int64_t chunk = kColumns;  // rows are contiguous: chunk after chunk
    if (width == kColumns) return product<R, 2, true>(users, dim, chunk, items, kColumns, dim, to, apart, false);
    float scores[R * kColumns];
    product<R, 2, true>(users, dim, chunk, items, kColumns, dim, scores, kColumns, false);
    for (int r = 0; r < R; ++r) std::copy_n(scores + r * kColumns, width, to + r * apart);
}

void score_sample(const Task& task, const int64_t g, float* const rows, float* const packed) {
    const int64_t dim = task.dim, n = task.sample_size, last = task.bounds[g + 1];
    for (int64_t from = 0; from < n; from += kColumns) {
        const int64_t width = std::min<int64_t>(kColumns, n - from);
        pack_items(task, task.drawn + g * n + from, width, rows, packed);
        float* const to = task.out + from;
        int64_t u = task.bounds[g];
        for (; u + kRows <= last; u += kRows) score_users<kRows>(task.users + u * dim, dim, packed, to + u * n, n, width);
        for (; u < last; ++u) score_users<1>(task.users + u * dim, dim, packed, to + u * n, n, width);
    }
}

// For each sample: chains of the positions in it by item, through which every positive of its rows is looked up.
void find_drawn_positives(const Task& task) {
    auto* const first = reinterpret_cast<int32_t*>(task.workspace);  // position of every item in the sample, or -1
    int32_t* const next = first + task.items;
    std::fill_n(first, task.items, -1);
    int64_t found = 0;
    for (int64_t g = 0; g < task.samples; ++g) {
        const int64_t* const drawn = task.drawn + g * task.sample_size;
        for (int64_t j = task.sample_size - 1; j >= 0; --j) {  // from the last, so that chains ascend
            next[j] = first[drawn[j]];
            first[drawn[j]] = static_cast<int32_t>(j);
        }
        for (int64_t r = task.bounds[g]; r < task.bounds[g + 1]; ++r) {
            const int64_t from = found;
            task.found_start[r] = found;
            for (int64_t i = task.indptr[r]; i < task.indptr[r + 1]; ++i)
                for (int32_t j = first[task.indices[i]]; j >= 0; j = next[j], ++found)
                    if (found < task.capacity) task.found[found] = j;
            if (found <= task.capacity) std::sort(task.found + from, task.found + found);
        }
        for (int64_t j = 0; j < task.sample_size; ++j) first[drawn[j]] = -1;
    }
    task.found_start[task.bounds[task.samples]] = found;
}

int64_t threads_of(const Task& task) { return std::max<int64_t>(1, std::min(task.threads, task.samples)); }

}  // namespace

// The scores of users with the items of their sample. Also reads dim, users and table; writes out (R, n).
const Operation sample_scores{
    [](const Task& task) { return threads_of(task) * 2 * kColumns * task.dim; },
    [](const Task& task) {
        const int64_t threads = threads_of(task), size = kColumns * task.dim;
        run_team(task, threads, [&](const int64_t thread) {
            float* const own = task.workspace + thread * 2 * size;
            for (int64_t g = thread; g < task.samples; g += threads) score_sample(task, g, own, own + size);
        });
    }};

// The positions in the sample of each row that hold one of the row's positives, ascending: found_start (R + 1) and found, of
// which those beyond `capacity` are only counted. Also reads items, indptr and indices.
const Operation drawn_positives{[](const Task& task) { return task.items + task.sample_size; }, find_drawn_positives};

}  // namespace talos::TALOS_LEVEL
