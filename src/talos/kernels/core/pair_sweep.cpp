// Sums over all pairs of a positive and a negative of every user, with both gradients, in one pass over all items.
//
// Reads what sweep.cpp reads, and the positives: indptr, positive_scores. Steps 1, 2 and 4 are in worker.h. Step 3 takes two
// turns: the sum of each positive, then the slopes, which need it (a single turn where they don't). Here a vector holds one
// user's scores with several items, so tiles are transposed. The pairs of a user with more than a few positives are summed by
// way of nodes (nodes.h). In the others a few positives at a time stay in registers, and the slopes of the items add up over
// the positives.
#include "worker.h"

namespace talos::TALOS_LEVEL {
namespace {

// A user's positives: their scores, their shifts, and the factors of their slopes. The results, one for each, are added to.
struct PositivesOfUser {
    int64_t count;
    const float *scores, *near;  // the scores themselves, and what near() takes for them
    const float *shifts, *weights;
    float *sums, *slope_sums;
    float low, high;             // of the scores

    float centre() const { return 0.5f * low + 0.5f * high; }
};

// What is computed: Σg of each positive, or the slopes of items and positives, or both.
enum class Wanted { kSums, kSlopes, kBoth };

// Q positives, from `first` on, against `width` items (a multiple of kTogether vectors).
template <Wanted kWanted, bool kIsNear, int Q, class Pairs>
inline void evaluate_some(const Pairs& pairs, const float* const items, const int64_t width, const PositivesOfUser& positives,
                          const int64_t first, float* const slopes) {
    Vector positive[Q], shift[Q], weight[Q], slope_sums[Q] = {};
    typename Pairs::Sum sums[Q];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
        positive[q] = splat((kIsNear ? positives.near : positives.scores)[first + q]);
        shift[q] = splat(positives.shifts[first + q]);
        weight[q] = kWanted == Wanted::kSums ? Vector{} : splat(positives.weights[first + q]);
    }
    for (int64_t j = 0; j < width; j += kTogether * kWidth) {
        for (int v = 0; v < kTogether; ++v) {
            const int64_t at = j + v * kWidth;
            const Vector item = load(items + at);
            Vector total{};
#pragma GCC unroll 4
            for (int q = 0; q < Q; ++q) {
                const Vector slope = kIsNear ? pairs.near(item, positive[q], shift[q], sums[q])
                                             : pairs.far(item, positive[q], shift[q], sums[q]);
                if (kWanted == Wanted::kSums) continue;
                slope_sums[q] += slope;
                total += weight[q] * slope;
            }
            if (kWanted != Wanted::kSums) store(slopes + at, load(slopes + at) + total);
        }
        if (kIsNear && kWanted != Wanted::kSlopes)
#pragma GCC unroll 4
            for (int q = 0; q < Q; ++q) pairs.close(sums[q]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
        if (kWanted != Wanted::kSlopes) positives.sums[first + q] += sum_of(sums[q].total);
        if (kWanted != Wanted::kSums) positives.slope_sums[first + q] += sum_of(slope_sums[q]);
    }
}

template <Wanted kWanted, bool kIsNear, class Pairs>
void evaluate_all(const Pairs& pairs, const float* const items, const int64_t width, const PositivesOfUser& all,
                  float* const slopes) {
    int64_t i = 0;
    for (; i + 4 <= all.count; i += 4) evaluate_some<kWanted, kIsNear, 4>(pairs, items, width, all, i, slopes);
    if (i + 2 <= all.count) evaluate_some<kWanted, kIsNear, 2>(pairs, items, width, all, i, slopes), i += 2;
    if (i < all.count) evaluate_some<kWanted, kIsNear, 1>(pairs, items, width, all, i, slopes);
}

// A row of scores against all positives of the user. `items` is memory for a row; `slopes` is added to.
template <Wanted kWanted, class Pairs>
void evaluate_row(const Pairs& pairs, const float* const row, float* const items, const int64_t width,
                  const PositivesOfUser& positives, float* const slopes) {
    const Vector gone = splat(kGone);
    Vector most = gone, least = -gone, least_of_all = -gone;
    for (int64_t j = 0; j < width; j += kWidth) {
        const Vector s = load(row + j);
        most = maximum(most, s), least_of_all = minimum(least_of_all, s);
        least = minimum(least, s <= kGone ? -gone : s);
    }
    const float highest = largest_of(most), lowest = -largest_of(-least);
    if (highest <= kGone) return;  // all items are excluded
    const bool has_gone = -largest_of(-least_of_all) <= kGone;
    const bool near = highest - positives.low <= pairs.reach() && positives.high - lowest <= pairs.reach();
    if (!near || (has_gone && !Pairs::kNearTakesGone)) return evaluate_all<kWanted, false>(pairs, row, width, positives, slopes);
    for (int64_t j = 0; j < width; j += kWidth) store(items + j, pairs.item(load(row + j), positives.centre()));
    evaluate_all<kWanted, true>(pairs, items, width, positives, slopes);
}

class PairSweep : Worker {
public:
    PairSweep(Shared& shared, const int64_t index)
        : Worker(shared, index), low_(of_users(index, 5)), high_(of_users(index, 6)), nodes_(reinterpret_cast<Nodes*>(own(at_.nodes))) {}

    void run() {
        sweep_blocks([this] { with_functor<true>(task_, [this](const auto& pairs) { evaluate(pairs); }); });
    }

private:
    template <class Pairs>
    void evaluate(const Pairs& pairs) {
        prepare_positives(pairs);
        const bool one_turn = Pairs::kOnePass && with_gradients();
        for (int64_t column = 0; column < count_; column += kColumns) {
            find_nodes(pairs, column);
            sum_pairs(pairs, column, one_turn);
        }
        if (!one_turn) shared_.barrier.wait();
        settle_weights(pairs);
        if (with_gradients()) {
            for (int64_t column = 0; column < count_; column += kColumns) transform_pairs(pairs, column);
            for (int64_t tile = begin_; tile < end_; tile += kTile) add_user_gradient(tile, std::min(tile + kTile, end_));
            shared_.barrier.wait();
        }
        finish_pairs(pairs);
    }

    // Numbers of one kind (0 … kPairRows - 1) that a thread has for the positives of the block.
    float* of_pairs(const int64_t thread, const int64_t kind) const {
        return of_thread(thread, at_.pairs) + kind * at_.most_positives;
    }

    // Memory for a tile of kColumns users, of which a thread has three.
    float* spare_tile(const int64_t number) const { return own(at_.tiles) + number * kTile * kColumns; }

    int64_t first_positive(const int64_t u) const { return task_.indptr[first_user_ + u]; }
    int64_t positives_count(const int64_t u) const { return first_positive(u + 1) - first_positive(u); }
    int64_t end_of(const int64_t column) const { return std::min(column + kColumns, count_); }  // of kColumns users

    PositivesOfUser positives_of(const int64_t u) const {
        const int64_t first = first_positive(u), at = first - first_positive(0);
        return {positives_count(u),       task_.positive_scores + first, of_pairs(index_, 2) + at,
                of_pairs(index_, 3) + at, of_pairs(index_, 4) + at,      of_pairs(index_, 0) + at,
                of_pairs(index_, 1) + at, low_[u],                       high_[u]};
    }

    template <class Pairs>
    void prepare_positives(const Pairs& pairs) {
        std::fill_n(of_pairs(index_, 0), at_.most_positives, 0.0f);
        std::fill_n(of_pairs(index_, 1), at_.most_positives, 0.0f);
        for (int64_t u = 0; u < count_; ++u) {
            const float* const scores = task_.positive_scores + first_positive(u);
            const int64_t count = positives_count(u), at = first_positive(u) - first_positive(0);
            low_[u] = high_[u] = count ? scores[0] : 0.0f;
            for (int64_t i = 1; i < count; ++i) low_[u] = std::min(low_[u], scores[i]), high_[u] = std::max(high_[u], scores[i]);
            const float centre = positives_of(u).centre(), highest = Pairs::kNeedsHighest ? highest_negative(u) : 0.0f;
            for (int64_t i = 0; i < count; ++i) {
                of_pairs(index_, 2)[at + i] = pairs.positive(scores[i], centre);
                of_pairs(index_, 3)[at + i] = highest <= kGone ? 0.0f : pairs.shift(highest - scores[i]);
            }
        }
    }

    // The length of a tile's rows: it is completed by excluded items.
    int64_t width_of(const int64_t from) const { return round_up(std::min(kTile, end_ - from), kTogether * kWidth); }

    // A tile's scores of kColumns users, as rows of one user each; returns their length.
    int64_t rows_of_tile(const int64_t from, const int64_t column, float* const rows) const {
        float* const scores = scores_of(from, column);
        const int64_t count = std::min(kTile, end_ - from), width = width_of(from);
        std::fill_n(scores + count * kColumns, (width - count) * kColumns, kGone);
        transpose(scores, kColumns, rows, kTile, width, kColumns);
        return width;
    }

    // Calls by_nodes(u, bins, where within them) or one_by_one(u, row) for the rows of kColumns users with positives.
    template <class ByNodes, class OneByOne>
    void for_rows(const int64_t column, const float* const rows, const int64_t width, const ByNodes& by_nodes,
                  const OneByOne& one_by_one) const {
        for (int64_t u = column; u < end_of(column); ++u) {
            const float* const row = rows + (u - column) * kTile;
            if (has_nodes(u)) {
                int32_t bin[kTile];
                float within[kTile];
                nodes_[u].locate(row, width, bin, within);
                by_nodes(u, bin, within);
            } else if (positives_count(u)) {
                one_by_one(u, row);
            }
        }
    }

    // Decides which of kColumns users have nodes, from the range of their scores.
    template <class Pairs>
    void find_nodes(const Pairs& pairs, const int64_t column) {
        int64_t most_positives = 0;
        for (int64_t u = column; u < end_of(column); ++u) most_positives = std::max(most_positives, positives_count(u));
        std::fill(nodes_ + column, nodes_ + end_of(column), Nodes{});
        for (int64_t from = column; most_positives > Pairs::kFew && from < end_of(column); from += kWidth) {
            Vector low = splat(-kGone), high = splat(kGone), finite{};
            for (int64_t tile = begin_; tile < end_; tile += kTile) {
                const float *const scores = scores_of(tile, from), *const stop = scores + std::min(kTile, end_ - tile) * kColumns;
                for (const float* at = scores; at < stop; at += kColumns) {
                    const Vector s = load(at);
                    low = minimum(low, s <= kGone ? splat(-kGone) : s);
                    high = maximum(high, s);
                    finite += 0.0f * s;  // 0, or NaN
                }
            }
            low += finite;
            for (int64_t u = from; u < std::min(from + kWidth, end_of(column)); ++u)
                if (const int64_t lane = u - from; high[lane] > kGone)
                    nodes_[u] = Nodes::of(low[lane], high[lane], pairs.steepness(), end_ - begin_, positives_count(u), Pairs::kFew);
        }
    }

    bool has_nodes(const int64_t u) const { return nodes_[u].bins > 0; }

    // Four numbers for every bin of one of the current users: what it counts, and later, in the same memory, its cubic.
    FourSums* counts_of(const int64_t u) const { return reinterpret_cast<FourSums*>(bins_of(u)); }
    Four* cubics_of(const int64_t u) const { return reinterpret_cast<Four*>(bins_of(u)); }
    float* bins_of(const int64_t u) const { return own(at_.bins) + u % kColumns * kBinRow; }

    // A number for every node of a user: where it is, and something else.
    const float* node_offsets(const int64_t u) const {
        float* const offsets = own(at_.bins) + kColumns * kBinRow;
        nodes_[u].offsets(offsets);
        return offsets;
    }
    float* node_values() const { return own(at_.bins) + kColumns * kBinRow + kNodeRow; }

    // Adds up g of kColumns users; if there is but one turn, only that of users with nodes, who need their sums before the slopes.
    // For a second turn, the tiles are left transposed.
    template <class Pairs>
    void sum_pairs(const Pairs& pairs, const int64_t column, const bool one_turn) const {
        bool any_nodes = false;
        for (int64_t u = column; u < end_of(column); ++u) {
            if (has_nodes(u)) std::fill_n(counts_of(u), nodes_[u].bins + 1, FourSums{});
            any_nodes = any_nodes || has_nodes(u);
        }
        if (one_turn && !any_nodes) return;
        float* const rows = spare_tile(0);
        for (int64_t from = begin_; from < end_; from += kTile) {
            const int64_t width = rows_of_tile(from, column, rows);
            const auto count_items = [&](const int64_t u, const int32_t* const bin, const float* const within) {
                spread(bin, within, width, counts_of(u));
            };
            const auto add_sums = [&](const int64_t u, const float* const row) {
                if (!one_turn) evaluate_row<Wanted::kSums>(pairs, row, spare_tile(1), width, positives_of(u), nullptr);
            };
            for_rows(column, rows, width, count_items, add_sums);
            if (with_gradients() && !one_turn) std::copy_n(rows, kTile * kColumns, scores_of(from, column));
        }
        for (int64_t u = column; u < end_of(column); ++u)
            if (has_nodes(u)) sum_over_nodes(pairs, u);
    }

    template <class Pairs>
    void sum_over_nodes(const Pairs& pairs, const int64_t u) const {
        const PositivesOfUser positives = positives_of(u);
        const float *const offsets = node_offsets(u), *const counts = node_values();
        counts_of_nodes(nodes_[u], counts_of(u), node_values());
        for (int64_t i = 0; i < positives.count; ++i) {
            Vector sums{}, slope_sums{};
            const auto add = [&](const int64_t m, const Vector g, const Vector slope) {
                sums += load(counts + m) * g;
                slope_sums += load(counts + m) * slope;
            };
            for_nodes(pairs, nodes_[u], offsets, positives.scores[i], positives.shifts[i], add);
            positives.sums[i] += sum_of(sums), positives.slope_sums[i] += sum_of(slope_sums);
        }
    }

    // Replaces what bins count by the cubics of the items' slopes.
    template <class Pairs>
    void find_cubics(const Pairs& pairs, const int64_t u) const {
        const PositivesOfUser positives = positives_of(u);
        const float* const offsets = node_offsets(u);
        float* const slopes = node_values();
        std::fill_n(slopes, nodes_[u].padded_count(), 0.0f);
        for (int64_t i = 0; i < positives.count; ++i) {
            const float weight = positives.weights[i];
            const auto add = [&](const int64_t m, Vector, const Vector slope) { store(slopes + m, load(slopes + m) + weight * slope); };
            for_nodes(pairs, nodes_[u], offsets, positives.scores[i], positives.shifts[i], add);
        }
        cubics_through(nodes_[u], slopes, cubics_of(u));
    }

    // Every thread computes for itself the factors of the slopes; the sums of all threads are known, if they matter here.
    template <class Pairs>
    void settle_weights(const Pairs& pairs) const {
        if (!with_gradients()) return;
        for (int64_t u = 0; u < count_; ++u) {
            const int64_t left = items_left(u);
            for (int64_t i = first_positive(u); i < first_positive(u + 1); ++i) {
                const int64_t at = i - first_positive(0);
                float weight = left == 0 ? 0.0f : task_.weights[i] * pairs.slope_factor();
                if (Pairs::kMean) weight /= static_cast<float>(std::max<int64_t>(1, left));
                if (!Pairs::kOnePass) {
                    const float total = total_of(0, at);
                    if (!task_.inner_only) weight *= pairs.outer_slope(inner_of(pairs, total, at, left));
                    if (Pairs::kLogSum && left) weight /= total;
                }
                of_pairs(index_, 4)[at] = weight;
            }
        }
    }

    // The sum of a positive's numbers of one kind.
    float total_of(const int64_t kind, const int64_t at) const {
        return over_threads(at_.pairs + kind * at_.most_positives + at);
    }

    template <class Pairs>
    float inner_of(const Pairs& pairs, const float total, const int64_t at, const int64_t left) const {
        if (Pairs::kLogSum) return left == 0 ? kNothingYet : std::log(total) + pairs.log_shift(of_pairs(index_, 3)[at]);
        return Pairs::kMean ? total / static_cast<float>(std::max<int64_t>(1, left)) : total;
    }

    // Replaces the scores of kColumns users by the slopes of the items, times the positives' factors.
    template <class Pairs>
    void transform_pairs(const Pairs& pairs, const int64_t column) const {
        constexpr Wanted wanted = Pairs::kOnePass ? Wanted::kBoth : Wanted::kSlopes;
        float* const slopes = spare_tile(2);
        for (int64_t u = column; u < end_of(column); ++u)
            if (has_nodes(u)) find_cubics(pairs, u);
        for (int64_t from = begin_; from < end_; from += kTile) {
            float *const scores = scores_of(from, column), *const rows = Pairs::kOnePass ? spare_tile(0) : scores;
            const int64_t width = Pairs::kOnePass ? rows_of_tile(from, column, rows) : width_of(from);
            std::fill_n(slopes, kTile * kColumns, 0.0f);
            const auto read = [&](const int64_t u, const int32_t* const bin, const float* const within) {
                read_cubics(cubics_of(u), bin, within, width, slopes + (u - column) * kTile);
            };
            const auto add_slopes = [&](const int64_t u, const float* const row) {
                evaluate_row<wanted>(pairs, row, spare_tile(1), width, positives_of(u), slopes + (u - column) * kTile);
            };
            for_rows(column, rows, width, read, add_slopes);
            float* const by_item = kDeep == 1 ? scores : spare_tile(0);
            transpose(slopes, kTile, by_item, kColumns, kColumns, width);
            for (int64_t j = 0; kDeep > 1 && j < width; j += kDeep) pack_slopes(by_item + j * kColumns, scores + j * kColumns);
        }
    }

    // The slopes of kDeep items with kColumns users, in the layout of `keep_slopes`.
    static void pack_slopes(const float* const from, float* const to) {
        for (int64_t column = 0; column < kColumns; column += kDeep * kWidth) {
            Vector slopes[kDeep][kDeep];
            for (int i = 0; i < kDeep; ++i)
                for (int v = 0; v < kDeep; ++v) slopes[i][v] = load(from + i * kColumns + column + v * kWidth);
            keep_slopes(slopes, to + column);
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
                const int64_t at = i - first_positive(0);
                task_.sums[i] = inner_of(pairs, total_of(0, at), at, items_left(u));
                if (with_gradients()) task_.positive_slopes[i] = -of_pairs(index_, 4)[at] * total_of(1, at);
            }
        }
        if (with_gradients()) scale_users();
    }

    float *const low_, *const high_;  // of the scores of each user's positives
    Nodes* const nodes_;              // of each user
};

}  // namespace

void pair_sweep(const Task& task) { run_workers<PairSweep>(task); }

}  // namespace talos::TALOS_LEVEL
