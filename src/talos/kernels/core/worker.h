// One thread of a sweep: what sums of φ (sweep.cpp) and sums over pairs (pair_sweep.cpp) share.
//
// Items are divided among the threads; users, as the rows of the batch are called here, are processed in blocks. The scores of a
// block with all items are kept (item-major: a vector holds one item's scores with several users) and go through four steps:
//
//   1. compute the scores, and the maximum of each user's scores in every band of kRows items
//   2. collect candidates for the K-th score: those that reach the K-th largest of these maxima; mark excluded items
//   3. replace the scores by slopes, add up the sums and the users' gradient       (needs β and the shift)
//   4. add up the items' gradient                                                  (needs the sums)
//
// with a barrier before 2, 3 and 4. Step 4 of one block is done tile by tile together with step 1 of the next, while the tile is
// in cache. The order of all additions is fixed, so results are identical from run to run.
//
// Products are of words (words.h). If a word is one number, slopes simply replace scores. If it is two (bfloat16), the users'
// gradient needs slopes paired by items and the items' gradient slopes paired by users; both together take as much memory as
// the scores.
//
// Everything is in an anonymous namespace: the compiler then inlines the functions that are called once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "losses.h"
#include "nodes.h"
#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kTile = 128;                 // items at a time, a multiple of kRows
constexpr int64_t kCacheBytes = 5 << 18;       // of scores per thread: about the size of a second-level cache
constexpr int64_t kMaxBlock = 256;             // users
constexpr int64_t kMostScores = 3 << 25;       // kept at a time, in floats: 384 MB. Fewer users than kColumns are never taken
constexpr int64_t kProductsPerThread = 1 << 20;  // for less, another thread does not pay off
constexpr int64_t kMoreCandidates = 64;        // room for candidates beyond 2K
constexpr int kHalvings = 12;                  // bisection steps, after which a bound is close enough
constexpr float kRounding = kDeep == 1 ? 1.0001f : 1.01f;  // computed |u·v| / (|u||v|) is at most this
constexpr int64_t kPairRows = 5;               // numbers per positive and thread: sum, slope sum, near score, shift, weight
constexpr int64_t kNodeRow = kMostBins + 2 * kAlign;  // numbers of a user's nodes, and what completes a vector
constexpr int64_t kBinRow = 8 * (kMostBins + 1);      // floats: four doubles for every bin, and that of excluded items
constexpr int64_t kNodesFloats = sizeof(Nodes) / sizeof(float);
constexpr float kNothingYet = -std::numeric_limits<float>::infinity();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Barrier {
public:
    explicit Barrier(const int count) : count_(count) {}

    void wait() {
        const int64_t round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        // The others usually arrive soon; but if there are more threads than cores, they may need this one's core.
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins)
            if (spins > 4000) std::this_thread::yield();
    }

private:
    const int count_;
    std::atomic<int> arrived_{0};
    std::atomic<int64_t> round_{0};
};

// Sizes, and the offsets of everything in the workspace, in floats.
struct Layout {
    int64_t threads, bands, padded_dim, block, blocks;
    int64_t coarse;          // coarse bands of each thread
    int64_t capacity;        // of a list of candidates
    int64_t most_positives;  // of a block, for pairs
    int64_t depth;           // words per vector that enter a score
    bool pad;                // vectors do not fill whole registers: work on padded copies
    bool copy;               // item vectors must be copied, to be padded or rounded

    int64_t kept, packed, scaled, partial, sums, per_user, norm, spare;  // of every thread: thread · each more
    int64_t candidates, counts, merged, pairs, tiles, bins, nodes;
    int64_t finest, coarsest, rows, columns, gradient;                             // once for all threads
    int64_t each, total;

    explicit Layout(const Task& task) {
        const bool pairwise = kTraits[task.kind].pairs;
        bands = (task.items + kRows - 1) / kRows;
        const int64_t busy = task.rows * task.items * task.dim / kProductsPerThread;
        threads = std::max<int64_t>(1, std::min(task.threads, std::min(bands, busy)));
        padded_dim = round_up(task.dim, kDeep * kWidth);
        pad = padded_dim != task.dim;
        copy = pad || kDeep > 1;
        depth = kDeep == 1 ? task.dim : padded_dim / kDeep;
        // A list that is full has more than K scores; one that may hold all of a thread's items is never full.
        capacity = task.k > 0 ? std::min(2 * task.k + kMoreCandidates, (bands / threads + 1) * kRows + 1) : 0;
        const int64_t most = task.users_per_block ? task.users_per_block : users_that_fit(task.items);
        blocks = std::max<int64_t>(1, (task.rows + most - 1) / most);
        block = std::max<int64_t>(kColumns, round_up((task.rows + blocks - 1) / blocks, kColumns));
        blocks = (task.rows + block - 1) / block;  // after rounding up, fewer may suffice
        // Four for each of the K: then little more than K scores reach the K-th largest maximum. None is empty.
        coarse = std::min(bands / threads, (4 * task.k + threads - 1) / threads);
        most_positives = 0;
        for (int64_t first = 0; pairwise && first < task.rows; first += block)
            most_positives = std::max(most_positives, task.indptr[std::min(first + block, task.rows)] - task.indptr[first]);

        int64_t at = 0;
        const auto take = [&at](const int64_t floats) {
            const int64_t from = at;
            at += round_up(floats, kAlign);
            return from;
        };
        kept = take(round_up((bands / threads + 1) * kRows, kTile) * block);
        packed = take(block * depth);
        scaled = take(block * padded_dim);
        partial = take(block * padded_dim);
        sums = take(kTraits[task.kind].sums * block);
        per_user = take((pairwise ? 7 : 5) * block);
        norm = take(1);
        spare = take((kDeep + 1) * padded_dim);
        candidates = take(block * capacity);
        counts = take(task.k > 0 ? block : 0);
        merged = take(threads * capacity);
        pairs = take(kPairRows * most_positives);
        tiles = take(pairwise ? 3 * kTile * kColumns : 0);
        bins = take(pairwise ? kColumns * kBinRow + 2 * kNodeRow : 0);
        nodes = take(pairwise ? kNodesFloats * block : 0);
        each = at, at = threads * each;
        finest = take(bands * block);
        coarsest = take(threads * coarse * block);
        rows = take(copy ? bands * kRows * padded_dim / kDeep : 0);
        columns = kDeep == 1 ? rows : take(bands * kRows * padded_dim / kDeep);
        gradient = take(pad ? task.items * padded_dim : 0);
        total = at + kAlign;
    }

private:
    // As many users as keep their scores in the second-level caches; if these are too few to be worth a pass over the items, as
    // many as keep their scores and everything else within bounded memory.
    int64_t users_that_fit(const int64_t items) const {
        const int64_t fitting = threads * kCacheBytes / 4 / std::max<int64_t>(1, items);
        if (fitting >= kColumns) return std::min(kMaxBlock, fitting / kColumns * kColumns);
        const int64_t copies = ((copy ? kDeep : 0) * padded_dim / kDeep + (pad ? padded_dim : 0)) * items;
        const int64_t of_user = items + threads * capacity;
        const int64_t bounded = std::max<int64_t>(0, kMostScores - copies) / of_user / kColumns * kColumns;
        return std::max<int64_t>(kColumns, std::min(kMaxBlock, bounded));
    }
};

// What the threads share.
struct Shared {
    const Task& task;
    const Layout layout;
    float* const base;
    Barrier barrier;

    explicit Shared(const Task& given)
        : task(given), layout(given), base(aligned(given.workspace)), barrier(static_cast<int>(layout.threads)) {}
};

bool any(const Integers mask) {
    int64_t words[sizeof(Integers) / 8];
    std::memcpy(words, &mask, sizeof mask);
    int64_t all = 0;
    for (const int64_t word : words) all |= word;
    return all != 0;
}

// Puts the k largest of `count` numbers in front, and returns the smallest of these.
float kth_largest(float* const values, const int64_t count, const int64_t k) {
    std::nth_element(values, values + (k - 1), values + count, std::greater<float>());
    return values[k - 1];
}

class Worker {
protected:
    Worker(Shared& shared, const int64_t index)
        : shared_(shared), task_(shared.task), at_(shared.layout), index_(index),
          first_band_(at_.bands * index / at_.threads), last_band_(at_.bands * (index + 1) / at_.threads),
          begin_(first_band_ * kRows), end_(std::min(last_band_ * kRows, task_.items)), kept_(own(at_.kept)),
          finest_(shared.base + at_.finest), coarsest_(shared.base + at_.coarsest),
          rows_(at_.copy ? words(shared.base + at_.rows) : words(task_.table)),
          columns_(at_.copy ? words(shared.base + at_.columns) : words(task_.table)),
          item_gradient_(at_.pad ? shared.base + at_.gradient : task_.item_gradient), packed_(words(own(at_.packed))),
          scaled_(words(own(at_.scaled))), partial_(own(at_.partial)), beta_(of_users(index, 0)), shift_(of_users(index, 1)),
          factor_(of_users(index, 2)), bound_(of_users(index, 3)), spare_(own(at_.spare)),
          counts_(reinterpret_cast<int32_t*>(own(at_.counts))) {}

    // All blocks; evaluate() is step 3, which ends with scale_users() where gradients are wanted.
    template <class Evaluate>
    void sweep_blocks(const Evaluate& evaluate) {
        prepare_items();
        if (begin_ == end_) std::fill_n(partial_, at_.block * dim(), 0.0f);  // without items, add_user_gradient() is not called
        for (int64_t block = 0; block < at_.blocks + (with_gradients() ? 1 : 0); ++block) {
            const bool scores = block < at_.blocks;
            if (scores) start_block(block);
            for (int64_t tile = begin_; tile < end_; tile += kTile) {
                const int64_t stop = std::min(tile + kTile, end_);
                if (with_gradients() && block > 0) add_item_gradient(tile, stop, previous_count_, block == 1);
                if (scores) score(tile, stop);
            }
            if (!scores) break;
            if (task_.k > 0) coarse_maxima();
            shared_.barrier.wait();
            if (task_.k > 0) find_candidates();
            mark_excluded();
            shared_.barrier.wait();
            settle_thresholds();
            if (task_.kind != kNothing) evaluate();
            previous_count_ = count_;
        }
        for (int64_t j = begin_; with_gradients() && at_.pad && at_.blocks > 0 && j < end_; ++j)
            std::copy_n(item_gradient_ + j * dim(), task_.dim, task_.item_gradient + j * task_.dim);
    }

    bool with_gradients() const { return task_.kind != kNothing && task_.gradients; }

    // Memory of a thread, and of this one.
    float* of_thread(const int64_t thread, const int64_t offset) const { return shared_.base + thread * at_.each + offset; }
    float* own(const int64_t offset) const { return of_thread(index_, offset); }

    // The sum of a number that every thread has in its memory.
    float over_threads(const int64_t offset) const {
        float sum = 0;
        for (int64_t t = 0; t < at_.threads; ++t) sum += *of_thread(t, offset);
        return sum;
    }

    // Numbers of one kind, one for every user of the block: β, shift, factor, bound, highest negative score of the thread's items
    // and, for pairs, the range of the positives' scores.
    float* of_users(const int64_t thread, const int64_t kind) const {
        return of_thread(thread, at_.per_user) + kind * at_.block;
    }

    // Scores are stored tile by tile, and within a tile by kColumns users: a register block is contiguous.
    float* scores_of(const int64_t j, const int64_t u) const {
        const int64_t row = j - begin_, start = row / kTile * kTile;
        return kept_ + start * at_.block + (u / kColumns * kTile + row - start) * kColumns + u % kColumns;
    }

    float highest_negative(const int64_t u) const {
        float highest = kNothingYet;
        for (int64_t t = 0; t < at_.threads; ++t) highest = std::max(highest, of_users(t, 4)[u]);
        return highest;
    }

    int64_t items_left(const int64_t u) const {
        const int64_t user = first_user_ + u;
        return task_.items - (task_.excluded_start ? task_.excluded_start[user + 1] - task_.excluded_start[user] : 0);
    }

    // Stores the slopes of kDeep items with kDeep vectors of users.
    static void keep_slopes(const Vector (&slopes)[1][1], float* const to) { store(to, slopes[0][0]); }

#if defined(TALOS_PAIRS)
    // Two items and 32 users: slopes of the first item paired by users, slopes of half the users paired by items; then the
    // same for the second item and the other half.
    static void keep_slopes(const Vector (&slopes)[2][2], float* const to) {
        store_words(words(to), in_order(slopes[0][0], slopes[0][1]));
        store_words(words(to) + kWidth, in_pairs(slopes[0][0], slopes[1][0]));
        store_words(words(to) + 2 * kWidth, in_order(slopes[1][0], slopes[1][1]));
        store_words(words(to) + 3 * kWidth, in_pairs(slopes[0][1], slopes[1][1]));
    }
#endif

    void add_user_gradient(const int64_t from, const int64_t to) const {
        for (int64_t u = 0; u < count_; u += kRows)
            product_rows<kRows, false>(slopes_by_item(from, u), kDeep * kColumns, 0, columns_ + from / kDeep * dim(), dim(),
                                       (to - from + kDeep - 1) / kDeep, partial_ + u * dim(), dim(), dim(), from > begin_);
    }

    void report_user_gradient(const int64_t u) const {
        for (int64_t k = 0; k < task_.dim; ++k)
            task_.user_gradient[(first_user_ + u) * task_.dim + k] = factor_[u] * over_threads(at_.partial + u * dim() + k);
    }

    // User vectors times their factors, for the items' gradient. If the number of users is odd, the last pair is completed by
    // zeros. Their product with a slope that is not finite makes the item's gradient NaN; it would not be finite anyway.
    void scale_users() const {
        for (int64_t u = 0; u < count_; u += kDeep) {
            for (int64_t i = 0; i < kDeep; ++i) spare_row(i, task_.users, first_user_ + u + i, first_user_ + count_, factor_[u + i]);
            pack_rows(spare_, dim(), dim(), scaled_ + u / kDeep * dim());
        }
    }

    Shared& shared_;
    const Task& task_;
    const Layout& at_;
    const int64_t index_;
    const int64_t first_band_, last_band_, begin_, end_;  // items of this thread
    int64_t first_user_ = 0, count_ = 0, previous_count_ = 0;

private:
    // Words and floats have the same size; the workspace holds both.
    static Word* words(float* const p) { return reinterpret_cast<Word*>(p); }
    static const Word* words(const float* const p) { return reinterpret_cast<const Word*>(p); }

    int64_t dim() const { return at_.padded_dim; }

    // The i-th spare row: vector j of a matrix times a factor, completed by zeros; zeros alone if j is not below `end`.
    float* spare_row(const int64_t i, const float* const matrix, const int64_t j, const int64_t end, const float factor = 1) const {
        float* const row = spare_ + i * dim();
        const int64_t width = j < end ? task_.dim : 0;
        for (int64_t k = 0; k < width; ++k) row[k] = factor * matrix[j * task_.dim + k];
        std::fill(row + width, row + dim(), 0.0f);
        return row;
    }

    // Finds the largest norm of an item, which bounds the scores, and converts item vectors to words where needed.
    void prepare_items() const {
        float largest = 0;
        for (int64_t j = begin_; j < end_; ++j) {
            const float* const row = task_.table + j * task_.dim;
            largest = std::max(largest, dot(row, row, task_.dim));
        }
        *own(at_.norm) = largest;
        if (!at_.copy) return;
        for (int64_t j = begin_; j < end_; j += kDeep) {
            for (int64_t i = 0; i < kDeep; ++i)
                pack_row(spare_row(i, task_.table, j + i, end_), dim(), words(shared_.base + at_.rows) + (j + i) * dim() / kDeep);
            if (kDeep > 1) pack_rows(spare_, dim(), dim(), words(shared_.base + at_.columns) + j / kDeep * dim());
        }
    }

    // Packs the users of a block: as many as a register block has columns, dimension by dimension, then the next ones.
    void start_block(const int64_t block) {
        first_user_ = block * at_.block;
        count_ = std::min(at_.block, task_.rows - first_user_);
        Word* const row = words(spare_ + kDeep * dim());
        for (int64_t u = 0; u < at_.block; ++u) {
            pack_row(spare_row(0, task_.users, first_user_ + u, first_user_ + count_), dim(), row);
            Word* const to = packed_ + u / kColumns * kColumns * at_.depth + u % kColumns;
            for (int64_t k = 0; k < at_.depth; ++k) to[k * kColumns] = row[k];
        }
    }

    void score(const int64_t from, const int64_t to) const {
        for (int64_t column = 0; column < at_.block; column += kColumns) {
            const Word* const users = packed_ + column * at_.depth;
            int64_t j = from;
            for (; j + kRows <= to; j += kRows) score_some<kRows>(j, column, users);
            for (; j < to; ++j) score_some<1>(j, column, users);  // the last items, fewer than a band
        }
    }

    template <int R>
    void score_some(const int64_t j, const int64_t column, const Word* const users) const {
        Vector sums[R][2] = {};
        const int64_t apart = dim() / kDeep;
        accumulate<R, 2, true>(rows_ + j * apart, apart, users, kColumns, at_.depth, sums);
        float *const to = scores_of(j, column), *const finest = finest_ + j / kRows * at_.block + column;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
            Vector most = R == kRows || j % kRows == 0 ? sums[0][v] : load(finest + v * kWidth);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                store(to + r * kColumns + v * kWidth, sums[r][v]);
                most = maximum(sums[r][v], most);
            }
            store(finest + v * kWidth, most);
        }
    }

    void coarse_maxima() const {
        const int64_t bands = last_band_ - first_band_;
        for (int64_t c = 0; c < at_.coarse; ++c) {
            const int64_t from = first_band_ + bands * c / at_.coarse, to = first_band_ + bands * (c + 1) / at_.coarse;
            for (int64_t column = 0; column < at_.block; column += kWidth)
                store(coarsest_ + (index_ * at_.coarse + c) * at_.block + column, highest_of(from, to, column));
        }
    }

    Vector highest_of(const int64_t from, const int64_t to, const int64_t column) const {
        Vector most = splat(kNothingYet);
        for (int64_t b = from; b < to; ++b) most = maximum(load(finest_ + b * at_.block + column), most);
        return most;
    }

    // The K-th largest of disjoint bands' maxima is at most the K-th score: candidates are the scores that reach it.
    void find_candidates() const {
        std::fill_n(counts_, at_.block, 0);
        for (int64_t column = 0; column < at_.block; column += kWidth) store(bound_ + column, bound_below(column));
        for (int64_t u = count_; u < at_.block; ++u) bound_[u] = kInfinity;
        for (int64_t b = first_band_; b < last_band_; ++b)
            for (int64_t column = 0; column < at_.block; column += kWidth)
                if (const Integers reached = load(finest_ + b * at_.block + column) >= load(bound_ + column); any(reached))
                    collect(b, column, reached);
    }

    // A lower bound of the K-th largest maximum, which few more than K maxima reach; for as many users as there are lanes,
    // by bisection. It need not be exact.
    Vector bound_below(const int64_t column) const {
        const int64_t all = at_.threads * at_.coarse;
        if (all < task_.k) return splat(kNothingYet);
        Vector low = splat(kInfinity), high = splat(kNothingYet);
        for (int64_t c = 0; c < all; ++c) {
            const Vector x = load(coarsest_ + c * at_.block + column);
            low = minimum(x, low), high = maximum(x, high);
        }
        for (int step = 0; step < kHalvings; ++step) {
            const Vector middle = 0.5f * low + 0.5f * high;
            Integers reached{};
            for (int64_t c = 0; c < all; ++c) reached -= load(coarsest_ + c * at_.block + column) >= middle;
            const Integers enough = reached >= static_cast<int32_t>(task_.k);
            low = enough ? middle : low;
            high = enough ? high : middle;
        }
        return low;
    }

    float* candidates_of(const int64_t thread, const int64_t u) const {
        return of_thread(thread, at_.candidates) + u * at_.capacity;
    }

    // Collects the scores of a band that reach the bound, for the users (lanes) of whom at least one does.
    void collect(const int64_t band, const int64_t column, const Integers reached) const {
        const int64_t from = band * kRows, count = std::min<int64_t>(kRows, end_ - from);
        const float* const scores = scores_of(from, column);  // items are kColumns apart
        int32_t lanes[kWidth];
        std::memcpy(lanes, &reached, sizeof lanes);
        for (int64_t lane = 0; lane < kWidth; ++lane) {
            if (!lanes[lane]) continue;
            const int64_t u = column + lane;
            float* const list = candidates_of(index_, u);
            for (int64_t j = 0; j < count; ++j)
                if (const float score = scores[j * kColumns + lane]; score >= bound_[u]) {
                    list[counts_[u]++] = score;
                    if (counts_[u] == at_.capacity) shorten(list, u);
                }
        }
    }

    // Keeps the K best of a full list, which happens where many scores tie. No more than these are needed, and of further scores
    // only those above the K-th.
    void shorten(float* const list, const int64_t u) const {
        bound_[u] = std::nextafter(kth_largest(list, counts_[u], task_.k), kInfinity);
        counts_[u] = static_cast<int32_t>(task_.k);
    }

    // Reports the scores of excluded pairs and replaces them by kGone; then finds the highest remaining score.
    void mark_excluded() const {
        for (int64_t u = 0; u < count_ && task_.excluded_start; ++u) {
            const int64_t* const last = task_.excluded + task_.excluded_start[first_user_ + u + 1];
            const int64_t* one = std::lower_bound(task_.excluded + task_.excluded_start[first_user_ + u], last, begin_);
            for (; one < last && *one < end_; ++one) {
                if (*one < begin_) continue;  // they do not ascend: the result is wrong, but no memory is
                float& score = *scores_of(*one, u);
                if (task_.excluded_scores) task_.excluded_scores[one - task_.excluded] = score;
                const int64_t band = *one / kRows, stop = std::min((band + 1) * kRows, end_);
                float& highest = finest_[band * at_.block + u];
                const bool below = score < highest;  // then another item has the maximum
                score = kGone;
                if (below) continue;
                highest = kNothingYet;
                for (int64_t j = band * kRows; j < stop; ++j) highest = std::max(highest, *scores_of(j, u));
            }
        }
        if (!kTraits[task_.kind].needs_highest) return;
        for (int64_t column = 0; column < at_.block; column += kWidth)
            store(of_users(index_, 4) + column, highest_of(first_band_, last_band_, column));
    }

    // Every thread combines the candidates of all threads for itself; the first one also reports the K best.
    void settle_thresholds() const {
        float* const all = own(at_.merged);
        for (int64_t u = 0; u < at_.block; ++u) {
            const int64_t user = first_user_ + u;
            beta_[u] = task_.thresholds && u < count_ ? task_.thresholds[user] : 0.0f;
            if (task_.k <= 0 || u >= count_) continue;
            int64_t found = 0;
            for (int64_t t = 0; t < at_.threads; ++t) {
                const int64_t count = reinterpret_cast<const int32_t*>(of_thread(t, at_.counts))[u];
                std::copy_n(candidates_of(t, u), count, all + found);
                found += count;
            }
            // Fewer than K candidates means that some scores are NaN, which never reach a bound.
            const bool enough = found >= task_.k;
            const float kth = enough ? kth_largest(all, found, task_.k) : std::nanf("");
            if (task_.kth_is_threshold) beta_[u] = kth;
            if (index_ != 0) continue;
            task_.kth[user] = kth;
            if (!task_.best) continue;
            if (enough) std::copy_n(all, task_.k, task_.best + user * task_.k);
            else std::fill_n(task_.best + user * task_.k, task_.k, kth);
        }
    }

    // Slopes of a user, paired by items, one word every kDeep · kColumns; `j` is a multiple of kDeep.
    const Word* slopes_by_item(const int64_t j, const int64_t u) const {
        const Word* const at = words(scores_of(j, u));
        return kDeep == 1 ? at : at + kWidth * (1 + u % kColumns / kWidth);
    }

    // Slopes of an item, paired by users; those of the next item follow after kColumns words.
    const Word* slopes_by_user(const int64_t j) const { return words(scores_of(j, 0)); }

    void add_item_gradient(const int64_t from, const int64_t to, const int64_t users, const bool first) const {
        constexpr int64_t chunk = kTile * kColumns;  // words from kColumns users to the next ones
        const int64_t depth = (users + kDeep - 1) / kDeep;
        int64_t j = from;
        for (; j + kRows <= to; j += kRows)
            product_rows<kRows, true>(slopes_by_user(j), kColumns, chunk, scaled_, dim(), depth, item_gradient_ + j * dim(), dim(),
                                      dim(), !first);
        for (; j < to; ++j)
            product_rows<1, true>(slopes_by_user(j), kColumns, chunk, scaled_, dim(), depth, item_gradient_ + j * dim(), dim(),
                                  dim(), !first);
    }

    float* const kept_;                        // scores, then slopes, of this thread's items
    float *const finest_, *const coarsest_;    // maxima by band, of all threads
    const Word *const rows_, *const columns_;  // of all items: for scores, for the users' gradient
    float* const item_gradient_;
    Word *const packed_, *const scaled_;
    float* const partial_;

protected:
    float *const beta_, *const shift_, *const factor_;

private:
    float *const bound_, *const spare_;
    int32_t* const counts_;  // of candidates
};

// Runs a sweep that is a Worker with a function run().
template <class Sweep>
void run_workers(const Task& task) {
    if (task.rows == 0 && task.gradients) std::fill_n(task.item_gradient, task.items * task.dim, 0.0f);
    Shared shared(task);
    run_team(task, shared.layout.threads, [&shared](const int64_t index) { Sweep(shared, index).run(); });
}

}  // namespace
}  // namespace talos::TALOS_LEVEL
