// One pass over all items for a batch of users: loss, both gradients and the exact K-th scores.
//
// Items are split between the threads; users are processed in blocks. The scores of a block with all items are
// kept (item-major: a vector holds one item's scores with several users) and go through four steps:
//
//   1. compute the scores, and the maximum of each user's scores in every group of a few items
//   2. collect candidates for the K-th score: those that reach the K-th largest of these maxima; mark positives
//   3. replace the scores by φ's slopes, add up Σφ and the users' gradient         (needs β and the shift)
//   4. add up the items' gradient                                                  (needs Σφ)
//
// Pairs of a positive and an item go through two turns of step 3: the sum of each positive, then the slopes, which need it
// (a single turn where they don't). There a vector holds one user's scores with several items, so tiles are transposed. The
// pairs of a user with more than a few positives are summed by way of nodes (nodes.h).
//
// with a barrier before 2, 3 and 4. Step 4 of one block is done tile by tile together with step 1 of the next,
// while the tile is in cache. The order of all additions is fixed, so results are identical from run to run.
//
// Products are of words (words.h). If a word is one number, slopes simply replace scores. If it is two
// (bfloat16), the users' gradient needs slopes paired by items and the items' gradient slopes paired by users; both
// together take as much memory as the scores.
//
// Compiled once per instruction set, see vector.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "losses.h"
#include "nodes.h"
#include "pairs.h"
#include "products.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kTile = 128;                // items at a time, a multiple of kRows
constexpr int64_t kCacheBytes = 5 << 18;      // of scores per thread: about the size of a second-level cache
constexpr int64_t kMaxBlock = 256;            // users
constexpr int64_t kMostScores = 3 << 25;      // kept at a time, in floats: 384 MB. Fewer users than kColumns are never taken
constexpr int64_t kWorkPerThread = 1 << 20;   // multiplications; for less, another thread does not pay off
constexpr int kMostSums = 3;                  // of any functor in losses.h
constexpr int kHalvings = 12;                 // bisection steps, after which a bound is close enough
constexpr float kRounding = kDeep == 1 ? 1.0001f : 1.01f;  // computed |u·v| / (|u||v|) is at most this
constexpr float kFarBelow = 60.0f;            // -log2 of a φ, relative to φ at the threshold, whose inverse is a safe factor
constexpr int64_t kPairRows = 5;               // numbers per positive and thread: sum, slope sum, Near::positive, shift, weight
constexpr int64_t kNodeRow = kMostBins + 2 * kAlign;       // numbers of a user's nodes, and what completes a vector
constexpr int64_t kBinRow = 8 * (kMostBins + 1);           // floats: four doubles for every bin, and that of excluded items
constexpr int64_t kNodeFloats = kColumns * kBinRow + 2 * kNodeRow;  // per thread
constexpr float kNothingYet = -std::numeric_limits<float>::infinity();

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

// Sizes, and the offsets of everything in the workspace; the same for all threads.
struct Layout {
    int64_t threads, groups, padded_dim, block, blocks;
    int64_t coarse;         // groups of kRows items per coarse group
    int64_t coarse_groups;  // at most, per thread
    bool pad;               // rows are not whole vectors: work on padded copies
    bool copy;              // item vectors must be copied, to be padded or rounded
    int64_t depth;          // words per vector that enter a score

    int64_t kept_each;      // floats of one thread's scores
    int64_t most_positives; // of a block, for pairs
    int64_t kept, finest, coarsest, rows, columns, gradient, packed, scaled, partial, sums, per_user, pairs, tiles, nodes;
    int64_t total;

    // As many users as keep their scores in the second-level caches; if these are too few to be worth a pass over the
    // items, as many as keep their scores and everything else within bounded memory.
    int64_t users_that_fit(const int64_t items) const {
        const int64_t fitting = threads * kCacheBytes / 4 / std::max<int64_t>(1, items);
        if (fitting >= kColumns) return std::min(kMaxBlock, fitting / kColumns * kColumns);
        const int64_t copies = ((copy ? kDeep : 0) * padded_dim / kDeep + (pad ? padded_dim : 0)) * items;
        const int64_t bounded = std::max<int64_t>(0, kMostScores - copies) / items / kColumns * kColumns;
        return std::max<int64_t>(kColumns, std::min(kMaxBlock, bounded));
    }

    explicit Layout(const Task& task) {
        groups = (task.items + kRows - 1) / kRows;
        const int64_t busy = task.users * task.items * task.dim / kWorkPerThread;
        threads = std::max<int64_t>(1, std::min<int64_t>(task.threads, std::min(groups, busy)));
        padded_dim = round_up(task.dim, kDeep * kWidth);
        pad = padded_dim != task.dim;
        copy = pad || kDeep > 1;
        depth = kDeep == 1 ? task.dim : padded_dim / kDeep;
        const int64_t most = task.users_per_block ? task.users_per_block : users_that_fit(task.items);
        blocks = std::max<int64_t>(1, (task.users + most - 1) / most);
        block = std::max<int64_t>(kColumns, round_up((task.users + blocks - 1) / blocks, kColumns));
        blocks = (task.users + block - 1) / block;  // after rounding up, fewer may suffice
        // Four coarse groups for each of the K: then little more than K scores reach the K-th largest maximum.
        coarse = std::max<int64_t>(1, groups / std::max<int64_t>(1, 4 * task.k));
        coarse_groups = (groups / threads + 1 + coarse) / coarse + 1;

        int64_t at = 0;
        const auto take = [&at](const int64_t floats) {
            const int64_t from = at;
            at += round_up(floats, kAlign);
            return from;
        };
        kept_each = round_up((groups / threads + 1) * kRows, kTile) * block;
        kept = take(threads * kept_each);
        finest = take(groups * block);
        coarsest = take(threads * coarse_groups * block);
        rows = take(copy ? groups * kRows * padded_dim / kDeep : 0);
        columns = kDeep == 1 ? rows : take(groups * kRows * padded_dim / kDeep);
        gradient = take(pad ? task.items * padded_dim : 0);
        packed = take(threads * block * depth);
        scaled = take(threads * block * padded_dim);
        partial = take(threads * block * padded_dim);
        sums = take(threads * kMostSums * block);
        per_user = take(threads * 4 * block);
        most_positives = 0;
        for (int64_t first = 0; task.positive_start && first < task.users; first += block) {
            const int64_t last = std::min(first + block, task.users);
            most_positives = std::max(most_positives, task.positive_start[last] - task.positive_start[first]);
        }
        pairs = take(threads * kPairRows * most_positives);
        tiles = take(is_pairwise(task.kind) ? threads * 3 * kTile * kColumns : 0);
        nodes = take(is_pairwise(task.kind) ? threads * kNodeFloats : 0);
        total = at + kAlign;
    }
};

// One thread's results for a block that the other threads read.
struct Findings {
    std::vector<std::vector<float>> candidates;  // by user
    std::vector<float> highest;                  // highest negative score of each user
    int64_t coarse_groups = 0;
    float largest_norm = 0;                      // squared, of the thread's items
};

// Shared by the threads.
struct Shared {
    const Task& task;
    const Layout layout;
    float* const base;
    Barrier barrier;
    std::vector<Findings> findings;

    explicit Shared(const Task& given)
        : task(given), layout(given), base(aligned(given.workspace)),
          barrier(static_cast<int>(layout.threads)), findings(layout.threads) {}
};

bool any(const Integers mask) {
    int64_t words[sizeof(Integers) / 8];
    std::memcpy(words, &mask, sizeof mask);
    int64_t all = 0;
    for (const int64_t word : words) all |= word;
    return all != 0;
}

// The k-th largest of `values`, which are reordered.
float kth_largest(std::vector<float>& values, const int64_t k) {
    if (static_cast<int64_t>(values.size()) < k) return kNothingYet;
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<float>());
    return values[k - 1];
}

// One thread's share of the sweep.
class Worker {
public:
    Worker(Shared& shared, const int64_t index)
        : shared_(shared), task_(shared.task), at_(shared.layout), index_(index), mine_(shared.findings[index]),
          first_group_(at_.groups * index / at_.threads), last_group_(at_.groups * (index + 1) / at_.threads),
          begin_(first_group_ * kRows), end_(std::min(last_group_ * kRows, task_.items)),
          kept_(shared.base + at_.kept + index * at_.kept_each), finest_(shared.base + at_.finest),
          rows_(at_.copy ? words(shared.base + at_.rows) : words(task_.item_vectors)),
          columns_(at_.copy ? words(shared.base + at_.columns) : words(task_.item_vectors)),
          item_gradient_(at_.pad ? shared.base + at_.gradient : task_.item_gradient),
          packed_(words(shared.base + at_.packed) + index * at_.block * at_.depth),
          scaled_(words(shared.base + at_.scaled) + index * at_.block * at_.padded_dim),
          partial_(shared.base + at_.partial + index * at_.block * at_.padded_dim),
          sums_(sums_of(index)) {
        float* const own = shared.base + at_.per_user + index * 4 * at_.block;
        beta_ = own, shift_ = own + at_.block, factor_ = own + 2 * at_.block, bound_ = own + 3 * at_.block;
        mine_.candidates.resize(task_.k > 0 ? at_.block : 0);
        mine_.highest.resize(at_.block);
        if (is_pairwise(task_.kind)) low_.resize(at_.block), high_.resize(at_.block), nodes_.resize(at_.block);
        coarse_ = shared.base + at_.coarsest + index * at_.coarse_groups * at_.block;
        mine_.coarse_groups = (last_group_ - first_group_ + at_.coarse - 1) / at_.coarse;
    }

    void run() {
        prepare_items();
        const bool gradients = with_gradients();
        for (int64_t block = 0; block < at_.blocks + (gradients ? 1 : 0); ++block) {
            const bool scores = block < at_.blocks;
            if (scores) start_block(block);
            for (int64_t tile = begin_; tile < end_; tile += kTile) {
                const int64_t stop = std::min(tile + kTile, end_);
                if (gradients && block > 0) add_item_gradient(tile, stop, previous_count_, block == 1);
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
        if (gradients && at_.pad) unpad_gradient();
    }

private:
    // Words and floats have the same size; the workspace holds both.
    static Word* words(float* const p) { return reinterpret_cast<Word*>(p); }
    static const Word* words(const float* const p) { return reinterpret_cast<const Word*>(p); }

    int64_t dim() const { return at_.padded_dim; }

    // A thread's sums: the first sum of all users of the block, then the second, …
    float* sums_of(const int64_t thread) const { return shared_.base + at_.sums + thread * kMostSums * at_.block; }

    bool with_gradients() const { return task_.kind != kNothing && task_.item_gradient; }

    // Scores are stored tile by tile, and within a tile by groups of users: a register block is contiguous.
    float* scores_of(const int64_t j, const int64_t u) const {
        const int64_t row = j - begin_, start = row / kTile * kTile;
        return kept_ + start * at_.block + (u / kColumns * kTile + row - start) * kColumns + u % kColumns;
    }

    // Finds the largest norm of an item, which bounds the scores, and converts item vectors to words where needed.
    void prepare_items() {
        float largest = 0;
        for (int64_t j = begin_; j < end_; ++j) {
            const float* const row = task_.item_vectors + j * task_.dim;
            largest = std::max(largest, dot(row, row, task_.dim));
        }
        mine_.largest_norm = largest;
        if (!at_.copy) return;
        std::vector<float> padded(kDeep * dim());
        for (int64_t j = begin_; j < end_; j += kDeep) {
            for (int64_t i = 0; i < kDeep; ++i) {
                float* const row = padded.data() + i * dim();
                if (j + i < end_) std::copy_n(task_.item_vectors + (j + i) * task_.dim, task_.dim, row);
                else std::fill_n(row, task_.dim, 0.0f);
                pack_row(row, dim(), words(shared_.base + at_.rows) + (j + i) * dim() / kDeep);
            }
            if (kDeep > 1) pack_rows(padded.data(), dim(), dim(), words(shared_.base + at_.columns) + j / kDeep * dim());
        }
    }

    void unpad_gradient() const {
        for (int64_t j = begin_; j < end_; ++j)
            std::copy_n(item_gradient_ + j * dim(), task_.dim, task_.item_gradient + j * task_.dim);
    }

    // Packs the users of a block: groups of as many users as a register block has columns, dimension by dimension.
    void start_block(const int64_t block) {
        const int64_t each = at_.block;
        first_user_ = block * each;
        count_ = std::min(each, task_.users - first_user_);
        std::vector<float> padded(dim());
        std::vector<Word> row(dim() / kDeep);
        for (int64_t u = 0; u < each; ++u) {
            if (u < count_) std::copy_n(task_.user_vectors + (first_user_ + u) * task_.dim, task_.dim, padded.data());
            else std::fill(padded.begin(), padded.end(), 0.0f);
            pack_row(padded.data(), dim(), row.data());
            Word* const to = packed_ + u / kColumns * kColumns * at_.depth + u % kColumns;
            for (int64_t k = 0; k < at_.depth; ++k) to[k * kColumns] = row[k];
        }
    }

    void score(const int64_t from, const int64_t to) const {
        for (int64_t column = 0; column < at_.block; column += kColumns) {
            const Word* const users = packed_ + column * at_.depth;
            int64_t j = from;
            for (; j + kRows <= to; j += kRows) score_group<kRows>(j, column, users);
            if (j < to) score_tail(j, to, column, users);
        }
    }

    template <int R>
    void score_group(const int64_t j, const int64_t column, const Word* const users) const {
        Vector sums[R][2] = {};
        const int64_t apart = dim() / kDeep;
        accumulate<R, 2, true>(rows_ + j * apart, apart, users, kColumns, at_.depth, sums);
        float* const to = scores_of(j, column);
        Vector most[2] = {sums[0][0], sums[0][1]};
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) {
                store(to + r * kColumns + v * kWidth, sums[r][v]);
                most[v] = maximum(sums[r][v], most[v]);
            }
        float* const finest = finest_ + j / kRows * at_.block + column;
        store(finest, most[0]);
        store(finest + kWidth, most[1]);
    }

    // The last items, if they are fewer than a group.
    void score_tail(const int64_t from, const int64_t to, const int64_t column, const Word* const users) const {
        constexpr int64_t chunk = kColumns / kDeep;  // rows are contiguous: chunk after chunk
        float* const finest = finest_ + from / kRows * at_.block + column;
        float most[kColumns];
        std::fill_n(most, kColumns, kNothingYet);
        for (int64_t j = from; j < to; ++j) {
            float* const scores = scores_of(j, column);
            product<1, 2, true>(rows_ + j * (dim() / kDeep), 0, chunk, users, kColumns, at_.depth, scores, kColumns, false);
            for (int64_t c = 0; c < kColumns; ++c) most[c] = std::max(most[c], scores[c]);
        }
        std::copy_n(most, kColumns, finest);
    }

    // Maxima over coarse groups.
    void coarse_maxima() const {
        for (int64_t c = 0; c < mine_.coarse_groups; ++c) {
            const int64_t from = first_group_ + c * at_.coarse, to = std::min(from + at_.coarse, last_group_);
            for (int64_t column = 0; column < at_.block; column += kWidth)
                store(coarse_ + c * at_.block + column, highest_of(from, to, column));
        }
    }

    Vector highest_of(const int64_t from, const int64_t to, const int64_t column) const {
        Vector most = splat(kNothingYet);
        for (int64_t g = from; g < to; ++g) most = maximum(load(finest_ + g * at_.block + column), most);
        return most;
    }

    // The K-th largest of disjoint groups' maxima is at most the K-th score: candidates are the scores that reach it.
    void find_candidates() {
        for (std::vector<float>& one : mine_.candidates) one.clear();
        for (int64_t column = 0; column < at_.block; column += kWidth) store(bound_ + column, bound_below(column));
        for (int64_t u = count_; u < at_.block; ++u) bound_[u] = std::numeric_limits<float>::infinity();
        for (int64_t g = first_group_; g < last_group_; ++g)
            for (int64_t column = 0; column < at_.block; column += kWidth)
                if (const Integers reached = load(finest_ + g * at_.block + column) >= load(bound_ + column); any(reached))
                    collect(g, column, reached);
    }

    // A lower bound of the K-th largest maximum, which few more than K maxima reach; for as many users as there are lanes,
    // by bisection. It need not be exact.
    Vector bound_below(const int64_t column) const {
        int64_t all = 0;
        Vector low = splat(std::numeric_limits<float>::infinity()), high = splat(kNothingYet);
        for_maxima(column, [&](const Vector x) { low = x < low ? x : low, high = x > high ? x : high, ++all; });
        if (all < task_.k) return splat(kNothingYet);
        for (int step = 0; step < kHalvings; ++step) {
            const Vector middle = 0.5f * low + 0.5f * high;
            Integers reached{};
            for_maxima(column, [&](const Vector x) { reached -= x >= middle; });
            const Integers enough = reached >= static_cast<int32_t>(task_.k);
            low = enough ? middle : low;
            high = enough ? high : middle;
        }
        return low;
    }

    template <class Function>
    void for_maxima(const int64_t column, const Function& function) const {
        for (int64_t t = 0; t < at_.threads; ++t) {
            const float* const theirs = shared_.base + at_.coarsest + t * at_.coarse_groups * at_.block + column;
            for (int64_t c = 0; c < shared_.findings[t].coarse_groups; ++c) function(load(theirs + c * at_.block));
        }
    }

    // Collects the scores of a group that reach the bound, for the users (lanes) of whom at least one does.
    void collect(const int64_t group, const int64_t column, const Integers reached) {
        const int64_t from = group * kRows, count = std::min<int64_t>(kRows, end_ - from);
        const float* const scores = scores_of(from, column);  // items are kColumns apart
        int32_t lanes[kWidth];
        std::memcpy(lanes, &reached, sizeof lanes);
        for (int64_t lane = 0; lane < kWidth; ++lane) {
            if (!lanes[lane]) continue;
            const float bound = bound_[column + lane];
            for (int64_t j = 0; j < count; ++j)
                if (const float score = scores[j * kColumns + lane]; score >= bound)
                    mine_.candidates[column + lane].push_back(score);
        }
    }

    // Reports the scores of excluded pairs and replaces them by kGone; then finds the highest remaining score.
    void mark_excluded() {
        for (int64_t u = 0; u < count_ && task_.excluded_start; ++u) {
            const int64_t* const last = task_.excluded + task_.excluded_start[first_user_ + u + 1];
            const int64_t* one = std::lower_bound(task_.excluded + task_.excluded_start[first_user_ + u], last, begin_);
            for (; one < last && *one < end_; ++one) {
                float& score = *scores_of(*one, u);
                if (task_.excluded_scores) task_.excluded_scores[one - task_.excluded] = score;
                const int64_t group = *one / kRows, stop = std::min((group + 1) * kRows, end_);
                float& highest = finest_[group * at_.block + u];
                const bool below = score < highest;  // then another item has the maximum
                score = kGone;
                if (below) continue;
                highest = kNothingYet;
                for (int64_t j = group * kRows; j < stop; ++j) highest = std::max(highest, *scores_of(j, u));
            }
        }
        if (task_.kind != kExp && task_.kind != kSigmoidPower && task_.kind != kSigmoidPowerPairs) return;
        for (int64_t column = 0; column < at_.block; column += kWidth)
            store(mine_.highest.data() + column, highest_of(first_group_, last_group_, column));
    }

    // Every thread combines the findings of all threads for itself; the first one also reports them.
    void settle_thresholds() {
        std::vector<float> all;
        for (int64_t u = 0; u < at_.block; ++u) {
            const int64_t user = first_user_ + u;
            beta_[u] = task_.thresholds && u < count_ ? task_.thresholds[user] : 0.0f;
            if (task_.k <= 0 || u >= count_) continue;
            all.clear();
            for (const Findings& theirs : shared_.findings)
                all.insert(all.end(), theirs.candidates[u].begin(), theirs.candidates[u].end());
            // Fewer than K candidates means that some scores are NaN, which never reach a bound.
            const float kth = static_cast<int64_t>(all.size()) < task_.k ? std::nanf("") : kth_largest(all, task_.k);
            if (task_.kth_is_threshold) beta_[u] = kth;
            if (index_ == 0) task_.kth[user] = kth;
            if (index_ == 0 && task_.best) report_best(user, all);
        }
    }

    // `kth_largest` has put the K best in front.
    void report_best(const int64_t user, const std::vector<float>& candidates) const {
        float* const to = task_.best + user * task_.k;
        if (static_cast<int64_t>(candidates.size()) < task_.k) return std::fill_n(to, task_.k, std::nanf("")), void();
        std::copy_n(candidates.begin(), task_.k, to);
    }

    void evaluate() {
        switch (task_.kind) {
            case kExp: return evaluate_with(Exp(task_));
            case kHinge: return evaluate_with(Hinge(task_));
            case kPartialAUC: return evaluate_with(PartialAUC(task_));
            case kSoftplusPairs: return evaluate_pairs(SoftplusPairs(task_));
            case kSigmoidPowerPairs: return evaluate_pairs(SigmoidPowerPairs(task_));
            case kSigmoidRankPairs: return evaluate_pairs(SigmoidRankPairs(task_));
            default: return is_near() ? evaluate_with(SigmoidPowerNear(task_)) : evaluate_with(SigmoidPower(task_));
        }
    }

    // Whether |ω(s - β)| is small enough for SigmoidPowerNear, for all scores of the block. Its Σφ is relative to φ at the
    // threshold; if all of a user's negatives are so far below that 1/Σφ might overflow as a factor, it is not used either.
    bool is_near() const {
        float items = 0, users = 0, beta = 0;
        const float steepness = task_.params[0] * task_.params[1] * kLog2E;
        for (const Findings& theirs : shared_.findings) items = std::max(items, theirs.largest_norm);
        for (int64_t u = 0; u < count_; ++u) {
            const float* const vector = task_.user_vectors + (first_user_ + u) * task_.dim;
            users = std::max(users, dot(vector, vector, task_.dim));
            beta = std::max(beta, std::fabs(beta_[u]));
            const float highest = highest_negative(u);
            if (highest > kGone && steepness * (highest - beta_[u]) < -kFarBelow) return false;
        }
        const float bound = task_.params[1] * (std::sqrt(items * users) * kRounding + beta);
        return bound <= SigmoidPowerNear::kNear && task_.params[0] <= SigmoidPowerNear::kMaxPower;
    }

    template <class Phi>
    void evaluate_with(const Phi phi) {
        for (int64_t u = 0; u < at_.block; ++u) shift_[u] = Phi::kNeedsHighest ? shift_of(phi, u) : 0.0f;
        std::fill_n(sums_, Phi::kSums * at_.block, 0.0f);
        for (int64_t tile = begin_; tile < end_; tile += kTile) {
            const int64_t stop = std::min(tile + kTile, end_);
            transform(phi, tile, stop);
            if (with_gradients()) add_user_gradient(tile, stop);
        }
        if (begin_ == end_) std::fill_n(partial_, at_.block * dim(), 0.0f);
        shared_.barrier.wait();
        finish_block(phi);
    }

    template <class Phi>
    float shift_of(const Phi& phi, const int64_t u) const {
        const float highest = highest_negative(u);
        return highest <= kGone ? 0.0f : phi.shift(highest, beta_[u]);  // no negatives: any shift will do
    }

    float highest_negative(const int64_t u) const {
        float highest = kNothingYet;
        for (const Findings& theirs : shared_.findings) highest = std::max(highest, theirs.highest[u]);
        return highest;
    }

    // Replaces the scores of a tile by slopes and adds φ to the users' sums.
    template <class Phi>
    void transform(const Phi& phi, const int64_t from, const int64_t to) const {
        for (int64_t column = 0; column < at_.block; column += kDeep * kWidth) {
            Vector beta[kDeep], shift[kDeep], sums[kDeep][Phi::kSums] = {};
            for (int v = 0; v < kDeep; ++v)
                beta[v] = load(beta_ + column + v * kWidth), shift[v] = load(shift_ + column + v * kWidth);
            float* const scores = scores_of(from, column);
            if ((to - from) % kDeep) std::fill_n(scores + (to - from) * kColumns, kColumns, kGone);  // completes the last word
            for (int64_t j = 0; j < to - from; j += kDeep) {
                float* const place = scores + j * kColumns;
                Vector slopes[kDeep][kDeep];
#pragma GCC unroll 2
                for (int i = 0; i < kDeep; ++i)
#pragma GCC unroll 2
                    for (int v = 0; v < kDeep; ++v) {
                        const Vector score = load(place + i * kColumns + v * kWidth);
                        slopes[i][v] = phi(score, beta[v], shift[v], sums[v]);
                    }
                keep_slopes(slopes, place);
            }
            for (int v = 0; v < kDeep; ++v)
                for (int i = 0; i < Phi::kSums; ++i) {
                    float* const place = sums_ + i * at_.block + column + v * kWidth;
                    store(place, load(place) + sums[v][i]);
                }
        }
    }

    static void keep_slopes(const Vector (&slopes)[1][1], float* const place) { store(place, slopes[0][0]); }

#if defined(TALOS_PAIRS)
    // Two items and 32 users: slopes of the first item paired by users, slopes of half the users paired by items; then the
    // same for the second item and the other half.
    static void keep_slopes(const Vector (&slopes)[2][2], float* const place) {
        store_words(words(place), in_order(slopes[0][0], slopes[0][1]));
        store_words(words(place) + kWidth, in_pairs(slopes[0][0], slopes[1][0]));
        store_words(words(place) + 2 * kWidth, in_order(slopes[1][0], slopes[1][1]));
        store_words(words(place) + 3 * kWidth, in_pairs(slopes[0][1], slopes[1][1]));
    }
#endif

    // Slopes of a user, paired by items, one word every kDeep · kColumns; `j` is a multiple of kDeep.
    const Word* slopes_by_item(const int64_t j, const int64_t u) const {
        const Word* const place = words(scores_of(j, u));
        return kDeep == 1 ? place : place + kWidth * (1 + u % kColumns / kWidth);
    }

    // Slopes of an item, paired by users; those of the next item follow after kColumns words.
    const Word* slopes_by_user(const int64_t j) const { return words(scores_of(j, 0)); }

    void add_user_gradient(const int64_t from, const int64_t to) const {
        for (int64_t u = 0; u < count_; u += kRows)
            product_rows<kRows, false>(slopes_by_item(from, u), kDeep * kColumns, 0, columns_ + from / kDeep * dim(), dim(),
                                       (to - from + kDeep - 1) / kDeep, partial_ + u * dim(), dim(), dim(),
                                       from > begin_);
    }

    // Numbers of one kind (0 … kPairRows - 1) that a thread has for the positives of the block.
    float* of_pairs(const int64_t thread, const int64_t kind) const {
        return shared_.base + at_.pairs + (thread * kPairRows + kind) * at_.most_positives;
    }

    // Memory for a tile of one group of users, of which a thread has three.
    float* spare_tile(const int64_t number) const {
        return shared_.base + at_.tiles + (index_ * 3 + number) * kTile * kColumns;
    }

    int64_t first_positive(const int64_t u) const { return task_.positive_start[first_user_ + u]; }

    PositivesOfUser positives_of(const int64_t u) const {
        const int64_t first = first_positive(u), place = first - first_positive(0);
        return {first_positive(u + 1) - first,  task_.positive_scores + first,  of_pairs(index_, 2) + place,
                of_pairs(index_, 3) + place,    of_pairs(index_, 4) + place,    of_pairs(index_, 0) + place,
                of_pairs(index_, 1) + place,    low_[u],                        high_[u],
                0.5f * low_[u] + 0.5f * high_[u]};
    }

    template <class Pairs>
    void evaluate_pairs(const Pairs pairs) {
        prepare_positives(pairs);
        const bool one_turn = Pairs::kOnePass && with_gradients();
        for (int64_t column = 0; column < at_.block; column += kColumns) {
            find_nodes(pairs, column);
            sum_pairs(pairs, column, one_turn);
        }
        if (!one_turn) shared_.barrier.wait();
        settle_weights(pairs);
        if (with_gradients()) {
            for (int64_t column = 0; column < at_.block; column += kColumns) transform_pairs(pairs, column);
            for (int64_t tile = begin_; tile < end_; tile += kTile) add_user_gradient(tile, std::min(tile + kTile, end_));
            if (begin_ == end_) std::fill_n(partial_, at_.block * dim(), 0.0f);
            shared_.barrier.wait();
        }
        finish_pairs(pairs);
    }

    template <class Pairs>
    void prepare_positives(const Pairs& pairs) {
        const typename Pairs::Near near(pairs);
        std::fill_n(of_pairs(index_, 0), at_.most_positives, 0.0f);
        std::fill_n(of_pairs(index_, 1), at_.most_positives, 0.0f);
        for (int64_t u = 0; u < count_; ++u) {
            const float* const scores = task_.positive_scores + first_positive(u);
            const int64_t count = first_positive(u + 1) - first_positive(u), place = first_positive(u) - first_positive(0);
            low_[u] = high_[u] = count ? scores[0] : 0.0f;
            for (int64_t i = 1; i < count; ++i) low_[u] = std::min(low_[u], scores[i]), high_[u] = std::max(high_[u], scores[i]);
            const float centre = 0.5f * low_[u] + 0.5f * high_[u];
            const float highest = Pairs::kNeedsHighest ? highest_negative(u) : 0.0f;
            for (int64_t i = 0; i < count; ++i) {
                of_pairs(index_, 2)[place + i] = near.positive(scores[i], centre);
                of_pairs(index_, 3)[place + i] = highest <= kGone ? 0.0f : pairs.shift(highest - scores[i]);
            }
        }
    }

    // The items that complete the width of a transposed tile are excluded.
    static int64_t padded_width(const int64_t count) { return round_up(count, kTogether * kWidth); }

    // A tile's scores of a group of users, as rows of one user each.
    void rows_of_tile(const int64_t from, const int64_t to, const int64_t column, float* const rows) const {
        float* const scores = scores_of(from, column);
        const int64_t width = padded_width(to - from);
        std::fill_n(scores + (to - from) * kColumns, (width - (to - from)) * kColumns, kGone);
        transpose(scores, kColumns, rows, kTile, width, kColumns);
    }

    // Decides which users of a group have nodes, from the range of their scores.
    template <class Pairs>
    void find_nodes(const Pairs& pairs, const int64_t column) {
        const int64_t last = std::min(column + kColumns, count_);
        int64_t most_positives = 0;
        for (int64_t u = column; u < last; ++u) {
            nodes_[u] = {};
            most_positives = std::max(most_positives, first_positive(u + 1) - first_positive(u));
        }
        if (most_positives <= Pairs::kFew) return;
        Vector least[2], most[2], finite[2] = {};
        for (int v = 0; v < 2; ++v) least[v] = splat(-kGone), most[v] = splat(kGone);
        for (int64_t tile = begin_; tile < end_; tile += kTile) {
            const float* const scores = scores_of(tile, column);
            for (int64_t j = 0; j < std::min(kTile, end_ - tile); ++j)
                for (int v = 0; v < 2; ++v) {
                    const Vector s = load(scores + j * kColumns + v * kWidth);
                    least[v] = minimum(least[v], s <= kGone ? splat(-kGone) : s);
                    most[v] = maximum(most[v], s);
                    finite[v] += 0.0f * s;  // 0, or NaN
                }
        }
        for (int64_t u = column; u < last; ++u) {
            const int v = static_cast<int>(u - column) / kWidth, lane = static_cast<int>(u - column) % kWidth;
            const float low = least[v][lane] + finite[v][lane], high = most[v][lane];
            const int64_t positives = first_positive(u + 1) - first_positive(u);
            if (high > kGone)
                nodes_[u] = Nodes::of(low, high, pairs.steepness(), end_ - begin_, positives, Pairs::kFew);
        }
    }

    bool has_nodes(const int64_t u) const { return nodes_[u].bins > 0; }

    // Four numbers for every bin of a user of the current group: what it counts, and later, in the same memory, its cubic.
    FourSums* counts_of(const int64_t u) const { return reinterpret_cast<FourSums*>(bins_of(u)); }
    Four* cubics_of(const int64_t u) const { return reinterpret_cast<Four*>(bins_of(u)); }
    float* bins_of(const int64_t u) const { return shared_.base + at_.nodes + index_ * kNodeFloats + u % kColumns * kBinRow; }

    // A number for every node of a user: where they are, or something else.
    float* node_offsets() const { return shared_.base + at_.nodes + index_ * kNodeFloats + kColumns * kBinRow; }
    float* node_values() const { return node_offsets() + kNodeRow; }

    // Adds up g of a group of users; if there is but one turn, only that of users with nodes, who need their sums before the
    // slopes. For a second turn, the tiles are left transposed.
    template <class Pairs>
    void sum_pairs(const Pairs& pairs, const int64_t column, const bool one_turn) const {
        const int64_t stop = std::min(column + kColumns, count_);
        bool any_nodes = false;
        for (int64_t u = column; u < stop; ++u) {
            if (has_nodes(u)) std::fill_n(counts_of(u), nodes_[u].bins + 1, FourSums{});
            any_nodes = any_nodes || has_nodes(u);
        }
        if (one_turn && !any_nodes) return;
        float* const rows = spare_tile(0);
        for (int64_t from = begin_; from < end_; from += kTile) {
            const int64_t width = padded_width(std::min(kTile, end_ - from));
            rows_of_tile(from, std::min(from + kTile, end_), column, rows);
            for (int64_t u = column; u < stop; ++u) {
                const float* const row = rows + (u - column) * kTile;
                const PositivesOfUser positives = positives_of(u);
                if (has_nodes(u)) {
                    int32_t bin[kTile];
                    float within[kTile];
                    nodes_[u].locate(row, width, bin, within);
                    spread(bin, within, width, counts_of(u));
                } else if (positives.count && !one_turn) {
                    evaluate_row<Wanted::kSums>(pairs, row, spare_tile(1), width, positives, nullptr);
                }
            }
            if (with_gradients() && !one_turn) std::copy_n(rows, kTile * kColumns, scores_of(from, column));
        }
        for (int64_t u = column; u < stop; ++u)
            if (has_nodes(u)) sum_over_nodes(typename Pairs::Far(pairs), u);
    }

    template <class Pair>
    void sum_over_nodes(const Pair& pair, const int64_t u) const {
        const PositivesOfUser positives = positives_of(u);
        nodes_[u].offsets(node_offsets());
        counts_of_nodes(nodes_[u], counts_of(u), node_values());
        for (int64_t i = 0; i < positives.count; ++i) {
            const SumsOfPositive sums = sums_of_positive(pair, node_offsets(), node_values(), nodes_[u].padded_count(),
                                                         positives.scores[i] - nodes_[u].low, positives.shifts[i]);
            positives.sums[i] += sums.values, positives.slope_sums[i] += sums.slopes;
        }
    }

    // Replaces what bins count by the cubics of the items' slopes.
    template <class Pair>
    void find_cubics(const Pair& pair, const int64_t u) const {
        const PositivesOfUser positives = positives_of(u);
        nodes_[u].offsets(node_offsets());
        std::fill_n(node_values(), nodes_[u].padded_count(), 0.0f);
        for (int64_t i = 0; i < positives.count; ++i)
            add_slopes_at_nodes(pair, node_offsets(), nodes_[u].padded_count(), positives.scores[i] - nodes_[u].low,
                                positives.shifts[i], positives.weights[i], node_values());
        cubics_through(nodes_[u], node_values(), cubics_of(u));
    }

    // Every thread computes for itself the factors of the slopes; the sums of all threads are known, if they matter here.
    template <class Pairs>
    void settle_weights(const Pairs& pairs) const {
        if (!with_gradients()) return;
        for (int64_t u = 0; u < count_; ++u) {
            const int64_t left = items_left(u);
            for (int64_t i = first_positive(u); i < first_positive(u + 1); ++i) {
                const int64_t place = i - first_positive(0);
                float weight = left == 0 ? 0.0f : task_.positive_coefficients[i] * pairs.slope_factor();
                if (Pairs::kMean) weight /= static_cast<float>(std::max<int64_t>(1, left));
                if (!Pairs::kOnePass) {
                    const float total = total_of(0, place);
                    if (!task_.inner_only) weight *= pairs.outer_slope(inner_of(pairs, total, place, left));
                    if (Pairs::kLogSum && left) weight /= total;
                }
                of_pairs(index_, 4)[place] = weight;
            }
        }
    }

    int64_t items_left(const int64_t u) const {
        const int64_t user = first_user_ + u;
        return task_.items - (task_.excluded_start ? task_.excluded_start[user + 1] - task_.excluded_start[user] : 0);
    }

    // A sum over all threads.
    float total_of(const int64_t kind, const int64_t place) const {
        float total = 0;
        for (int64_t t = 0; t < at_.threads; ++t) total += of_pairs(t, kind)[place];
        return total;
    }

    template <class Pairs>
    float inner_of(const Pairs& pairs, const float total, const int64_t place, const int64_t left) const {
        if (Pairs::kLogSum) return left == 0 ? kNothingYet : std::log(total) + pairs.log_shift(of_pairs(index_, 3)[place]);
        return Pairs::kMean ? total / static_cast<float>(std::max<int64_t>(1, left)) : total;
    }

    // Replaces the scores of a group of users by the slopes of the items, times the positives' factors.
    template <class Pairs>
    void transform_pairs(const Pairs& pairs, const int64_t column) const {
        constexpr Wanted wanted = Pairs::kOnePass ? Wanted::kBoth : Wanted::kSlopes;
        float* const slopes = spare_tile(2);
        const int64_t last = std::min(column + kColumns, count_);
        for (int64_t u = column; u < last; ++u)
            if (has_nodes(u)) find_cubics(typename Pairs::Far(pairs), u);
        for (int64_t from = begin_; from < end_; from += kTile) {
            const int64_t to = std::min(from + kTile, end_), width = padded_width(to - from);
            float* const place = scores_of(from, column);
            const float* const rows = Pairs::kOnePass ? spare_tile(0) : place;
            if (Pairs::kOnePass) rows_of_tile(from, to, column, spare_tile(0));
            std::fill_n(slopes, kTile * kColumns, 0.0f);
            for (int64_t u = column; u < last; ++u) {
                const float* const row = rows + (u - column) * kTile;
                float* const of_user = slopes + (u - column) * kTile;
                const PositivesOfUser positives = positives_of(u);
                if (has_nodes(u)) {
                    int32_t bin[kTile];
                    float within[kTile];
                    nodes_[u].locate(row, width, bin, within);
                    read_cubics(cubics_of(u), bin, within, width, of_user);
                } else if (positives.count) {
                    evaluate_row<wanted>(pairs, row, spare_tile(1), width, positives, of_user);
                }
            }
            if (kDeep == 1) {
                transpose(slopes, kTile, place, kColumns, kColumns, width);
                continue;
            }
            float* const by_item = spare_tile(0);
            transpose(slopes, kTile, by_item, kColumns, kColumns, width);
            for (int64_t j = 0; j < to - from; j += kDeep) pack_slopes(by_item + j * kColumns, place + j * kColumns);
        }
    }

    // The slopes of kDeep items with a group of users, in the layout of `keep_slopes`.
    static void pack_slopes(const float* const from, float* const place) {
        for (int64_t column = 0; column < kColumns; column += kDeep * kWidth) {
            Vector slopes[kDeep][kDeep];
            for (int i = 0; i < kDeep; ++i)
                for (int v = 0; v < kDeep; ++v) slopes[i][v] = load(from + i * kColumns + column + v * kWidth);
            keep_slopes(slopes, place + column);
        }
    }

    // Reports R and the slopes of the positives; the factors are in the slopes already.
    template <class Pairs>
    void finish_pairs(const Pairs& pairs) {
        for (int64_t u = 0; u < count_; ++u) {
            factor_[u] = 1.0f;
            if (u % at_.threads != index_) continue;
            if (with_gradients()) report_user_gradient(u);
            for (int64_t i = first_positive(u); i < first_positive(u + 1); ++i) {
                const int64_t place = i - first_positive(0);
                task_.inner[i] = inner_of(pairs, total_of(0, place), place, items_left(u));
                if (with_gradients()) task_.positive_slopes[i] = -of_pairs(index_, 4)[place] * total_of(1, place);
            }
        }
        if (with_gradients()) scale_users();
    }

    // Now that Σφ is known: computes R and, for gradients, the factor of each user's slopes, the users' gradient and the
    // scaled user vectors for the items' gradient.
    template <class Phi>
    void finish_block(const Phi& phi) {
        for (int64_t u = 0; u < count_; ++u) {
            const int64_t user = first_user_ + u;
            float total = 0;
            for (int64_t t = 0; t < at_.threads; ++t) total += sums_of(t)[u];
            const int64_t left = items_left(u);
            const float log_sum = std::log(total) + phi.log_shift(shift_[u]);
            if (with_gradients()) {
                const float share = left == 0 ? 0.0f : 1.0f / (Phi::kLogSum ? total : static_cast<float>(left));
                factor_[u] = share * task_.scale * task_.coefficients[user] * phi.slope_factor();
            }
            if (u % at_.threads != index_) continue;
            const float mean = left == 0 ? 0.0f : total / static_cast<float>(left);
            task_.negative[user] = left == 0 ? 0.0f : task_.scale * (Phi::kLogSum ? log_sum : mean);
            task_.normalizer[user] = !Phi::kLogSum ? total : left == 0 ? kNothingYet : log_sum;
            if (!with_gradients()) continue;
            report_user_gradient(u);
            for (int i = 1; i < Phi::kSums; ++i) {
                float moment = 0;
                for (int64_t t = 0; t < at_.threads; ++t) moment += sums_of(t)[i * at_.block + u];
                task_.moments[user * (kMostSums - 1) + i - 1] = factor_[u] * moment;
            }
        }
        if (with_gradients()) scale_users();
    }

    // User vectors times their factors, for the items' gradient. If the number of users is odd, the last pair is completed by
    // zeros. Their product with a slope that is not finite makes the item's gradient NaN; it would not be finite anyway.
    void scale_users() const {
        std::vector<float> some(kDeep * dim());
        for (int64_t first = 0; first < count_; first += kDeep) {
            for (int64_t u = first; u < first + kDeep; ++u) {
                const float* const vector = task_.user_vectors + (first_user_ + u) * task_.dim;
                float* const row = some.data() + (u - first) * dim();
                for (int64_t k = 0; k < task_.dim; ++k) row[k] = u < count_ ? factor_[u] * vector[k] : 0.0f;
            }
            pack_rows(some.data(), dim(), dim(), scaled_ + first / kDeep * dim());
        }
    }

    void report_user_gradient(const int64_t u) const {
        for (int64_t k = 0; k < task_.dim; ++k) {
            float sum = 0;
            for (int64_t t = 0; t < at_.threads; ++t)
                sum += (shared_.base + at_.partial + t * at_.block * dim())[u * dim() + k];
            task_.user_gradient[(first_user_ + u) * task_.dim + k] = factor_[u] * sum;
        }
    }

    void add_item_gradient(const int64_t from, const int64_t to, const int64_t users, const bool first) const {
        constexpr int64_t chunk = kTile * kColumns;  // words from one group of users to the next
        const int64_t depth = (users + kDeep - 1) / kDeep;
        int64_t j = from;
        for (; j + kRows <= to; j += kRows)
            product_rows<kRows, true>(slopes_by_user(j), kColumns, chunk, scaled_, dim(), depth,
                                      item_gradient_ + j * dim(), dim(), dim(), !first);
        for (; j < to; ++j)
            product_rows<1, true>(slopes_by_user(j), kColumns, chunk, scaled_, dim(), depth,
                                  item_gradient_ + j * dim(), dim(), dim(), !first);
    }

    Shared& shared_;
    const Task& task_;
    const Layout& at_;
    const int64_t index_;
    Findings& mine_;
    const int64_t first_group_, last_group_, begin_, end_;  // items of this thread
    float* const kept_;                                     // scores, then slopes, of this thread's items
    float* const finest_;                                   // maxima by group, of all threads
    const Word *const rows_, *const columns_;               // of all items: for scores, for the users' gradient
    float* const item_gradient_;
    Word *const packed_, *const scaled_;
    float *const partial_, *const sums_;
    float *beta_, *shift_, *factor_, *bound_, *coarse_;
    std::vector<float> low_, high_;                         // of the scores of each user's positives, for pairs
    std::vector<Nodes> nodes_;                              // of each user, likewise
    int64_t first_user_ = 0, count_ = 0, previous_count_ = 0;
};

}  // namespace

int64_t workspace_bytes(const Task& task) { return Layout(task).total * 4; }

void sweep(const Task& task) {
    Shared shared(task);
    run_team(task.team, shared.layout.threads, [&shared](const int64_t index) { Worker(shared, index).run(); });
}

}  // namespace talos::TALOS_LEVEL
