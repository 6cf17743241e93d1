// SmoothI@K over whole lists: K softmaxes over a user's scores one after the other, with their slopes in closed form.
//
// For r = 1 … K: x_j = l_j · left_j with l = (s - min s)/τ, I = softmax(x), left_j ← left_j · (1 - I_j - δ). `left` is a
// constant for the gradient, so with B = Σ_i c_i I_i over the positives the slope in l_j grows by
//
//     -1/K · left_j · I_j · (c_j - B),        c_j = 0 for an item that is no positive
//
// which needs B only, known as soon as the softmax is. The minimum of a list is subtracted from all of it, so its slope is
// lowered by the sum of all slopes. The smallest item has x = 0 throughout, hence the largest x is never below 0.
//
// Everything above is a function of an item's score, but for the positives' c_j, and a smooth one below the first places. So
// the many items there are replaced by equidistant nodes (nodes.h), each of which counts for a number of items, and their
// slopes are read off cubics; positives and the best items are points of their own. The x of an item whose places add up to
// A bends on a scale of 1 / (1 + l·A): where a node took so much that the cubics are no longer exact, the list is done again
// with all items as points.
//
// A list and a few rows of workspace stay in cache, and users, as the rows of the batch are called here, are divided among the
// threads.
//
// Reads rows, items, k, params (1/τ, δ), weights (c), indptr and indices, each item at most once in a row; out (R, I) has the
// scores, which are replaced by the slopes of Σ_i c_i value_i, and sums (P) are the values 1 - 1/K Σ_r I^r.
#include <algorithm>
#include <cmath>

#include "losses.h"
#include "nodes.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int kArrays = 7;
constexpr int64_t kBlock = 256;                            // items at a time, where each has a bin
constexpr float kFiner = 2.0f;                             // bins in l, relative to those of a pairwise loss in its d
constexpr float kMostTaken = 0.5f;                         // l·A up to which the cubics are exact, to about 1e-6
constexpr int64_t kFewestBest = 256, kBestPerPlace = 8;    // items above the nodes, about
constexpr int64_t kSampled = 4;                            // one block of so many says where that is
constexpr int64_t kBins = kMostBins + 1, kBinFloats = 16;  // of a bin: what it counts, its cubic, how many items it has

int64_t padded(const int64_t count) { return round_up(count, kWidth); }

int64_t most_positives(const Task& task) {
    int64_t most = 0;
    for (int64_t u = 0; u < task.rows; ++u) most = std::max(most, task.indptr[u + 1] - task.indptr[u]);
    return most;
}

// One user's list.
class List {
public:
    // Floats of workspace: those of bins, and arrays with a number for each point.
    static int64_t floats(const Task& task) {
        return kBinFloats * kBins + round_up(kArrays * most_points(task), kAlign);
    }

    static int64_t most_points(const Task& task) {
        return padded(task.items + most_positives(task)) + round_up(kMostBins + kBeside, kWidth);
    }

    List(const Task& task, const int64_t user, float* const memory, const int64_t most_points)
        : task_(task), first_(task.indptr[user]), count_(task.indptr[user + 1] - first_), row_(task.out + user * task.items),
          inverse_tau_(task.params[0]), delta_(task.params[1]), counts_(reinterpret_cast<FourSums*>(memory)), cubics_(reinterpret_cast<Four*>(memory + 8 * kBins)),
          in_bin_(reinterpret_cast<int32_t*>(memory + 12 * kBins)), scaled_(memory + kBinFloats * kBins),
          left_(scaled_ + most_points), powers_(left_ + most_points), slopes_(powers_ + most_points),
          sums_(slopes_ + most_points), weights_(sums_ + most_points),
          item_of_(reinterpret_cast<int32_t*>(weights_ + most_points)) {}

    void run() {
        if (count_ == 0) return std::fill_n(row_, task_.items, 0.0f), void();
        find_range();
        place_nodes();
        take_places();
        if (nodes_.bins && !exact_at_nodes()) {
            nodes_ = {};
            take_places();
        }
        finish();
    }

private:
    int64_t positive(const int64_t i) const { return task_.indices[first_ + i]; }
    float scaled(const float score) const { return (score - lowest_) * inverse_tau_; }

    void find_range() {
        Vector low = splat(row_[0]), high = low, sum{};
        int64_t j = 0;
        for (; j + kWidth <= task_.items; j += kWidth) {
            const Vector s = load(row_ + j);
            low = minimum(s, low), high = maximum(s, high), sum += s;
        }
        lowest_ = -largest_of(-low), highest_score_ = largest_of(high);
        float total = sum_of(sum);
        for (; j < task_.items; ++j) {
            lowest_ = row_[j] < lowest_ ? row_[j] : lowest_;
            highest_score_ = row_[j] > highest_score_ ? row_[j] : highest_score_;
            total += row_[j];
        }
        if (!std::isfinite(total)) highest_score_ = NAN;  // no nodes then
    }

    // Nodes from the lowest score up to where some hundred items are left; none where they would not pay.
    void place_nodes() {
        nodes_ = Nodes::of(lowest_, highest_score_, kFiner * inverse_tau_, task_.items, 1, 0);
        if (!nodes_.bins) return;
        std::fill_n(in_bin_, nodes_.bins, 0);
        const auto count_them = [this](int64_t, const int64_t count, const int32_t* const bin, const float*) {
            for (int64_t j = 0; j < count; ++j) in_bin_[bin[j]] += kSampled;
        };
        for_each_block(count_them, kSampled);
        const int64_t wanted = std::max(kFewestBest, kBestPerPlace * task_.k);
        int64_t best = 0;
        while (nodes_.bins > 0 && best < wanted) best += in_bin_[--nodes_.bins];
        const int64_t points = padded(count_ + best) + nodes_.padded_count();
        if (2 * points > task_.items) nodes_ = {};
    }

    // Calls work(first item, how many, their bins, where within them) for every block or every so manyth; above the nodes,
    // `within` is 1 or more.
    template <class Work>
    void for_each_block(const Work& work, const int64_t every = 1) const {
        int32_t bin[kBlock];
        float within[kBlock], scores[kBlock];
        for (int64_t from = 0; from < task_.items; from += every * kBlock) {
            const int64_t count = std::min(kBlock, task_.items - from);
            std::copy_n(row_ + from, count, scores);
            std::fill_n(scores + count, padded(count) - count, lowest_);
            nodes_.locate(scores, padded(count), bin, within);
            work(from, count, bin, within);
        }
    }

    // The points: positives in their order, other items, and nodes.
    void take_points() {
        own_ = 0;
        for (int64_t i = 0; i < count_; ++i) add_point(positive(i));
        for (int64_t i = 0; i < count_; ++i) sums_[i] = row_[positive(i)];
        for (int64_t i = 0; i < count_; ++i) row_[positive(i)] = kGone;
        if (nodes_.bins) {
            add_best_and_spread();
        } else {
            for (int64_t j = 0; j < task_.items; ++j)
                if (row_[j] != kGone) add_point(j);
        }
        for (int64_t i = 0; i < count_; ++i) row_[positive(i)] = sums_[i];
        first_node_ = width_ = padded(own_);
        std::fill_n(scaled_ + own_, width_ - own_, 0.0f);
        std::fill_n(weights_ + own_, width_ - own_, 0.0f);
        if (nodes_.bins) {
            nodes_.offsets(scaled_ + first_node_);
            counts_of_nodes(nodes_, counts_, weights_ + first_node_);
            width_ += nodes_.padded_count();
            for (int64_t p = first_node_; p < width_; ++p) scaled_[p] *= inverse_tau_;
        }
        std::fill_n(left_, width_, 1.0f);
        std::fill_n(slopes_, width_, 0.0f);
        std::fill_n(sums_, width_, 0.0f);
        highest_ = *std::max_element(scaled_, scaled_ + width_);
    }

    void add_point(const int64_t item) {
        item_of_[own_] = static_cast<int32_t>(item);
        scaled_[own_] = scaled(row_[item]);
        weights_[own_++] = 1;
    }

    void add_best_and_spread() {
        std::fill_n(counts_, nodes_.bins + 1, FourSums{});
        for_each_block([this](const int64_t from, const int64_t count, int32_t* const bin, const float* const within) {
            for (int64_t j = 0; j < count; ++j)
                if (within[j] >= 1) add_point(from + j), bin[j] = static_cast<int32_t>(nodes_.bins);
            spread(bin, within, count, counts_);
        });
    }

    void take_places() {
        take_points();
        for (int64_t r = 0; r < task_.k; ++r) take_place();
    }

    // One softmax, what it adds to the sums and slopes of all points, and the factors of the next one.
    void take_place() {
        Vector total{};
        for (int64_t p = 0; p < width_; p += kWidth) {
            const Vector power = exp2((load(scaled_ + p) * load(left_ + p) - highest_) * kLog2E);
            store(powers_ + p, power);
            total += load(weights_ + p) * power;
        }
        const float inverse = 1 / sum_of(total);
        float taken = 0;  // B
        for (int64_t i = 0; i < count_; ++i) {
            const float wanted = task_.weights[first_ + i] * powers_[i] * inverse;
            taken += wanted;
            slopes_[i] += left_[i] * wanted;
        }
        Vector highest{};
        for (int64_t p = 0; p < width_; p += kWidth) {
            const Vector place = load(powers_ + p) * inverse, left = load(left_ + p);
            store(sums_ + p, load(sums_ + p) + place);
            store(slopes_ + p, load(slopes_ + p) - taken * (left * place));
            const Vector next = left * (1.0f - delta_ - place);
            store(left_ + p, next);
            highest = maximum(highest, load(scaled_ + p) * next);
        }
        highest_ = largest_of(highest);
    }

    bool exact_at_nodes() const {
        for (int64_t p = first_node_; p < width_; ++p)
            if (!(scaled_[p] * sums_[p] <= kMostTaken)) return false;
        return true;
    }

    void finish() {
        for (int64_t i = 0; i < count_; ++i) task_.sums[first_ + i] = 1 - sums_[i] / static_cast<float>(task_.k);
        Vector total{};
        for (int64_t p = 0; p < width_; p += kWidth) total += load(weights_ + p) * load(slopes_ + p);
        int64_t ties = 0;
        for (int64_t j = 0; j < task_.items; ++j) ties += scaled(row_[j]) == 0.0f;
        const float scale = -inverse_tau_ / static_cast<float>(task_.k);
        const float shared = sum_of(total) / static_cast<float>(std::max<int64_t>(1, ties));
        const auto slope = [&](const float of_item, const float l) { return scale * (of_item - (l == 0.0f ? shared : 0.0f)); };
        if (nodes_.bins) {
            cubics_through(nodes_, slopes_ + first_node_, cubics_);
            for_each_block([&](const int64_t from, const int64_t count, const int32_t* const bin, const float* const within) {
                float of_items[kBlock];
                read_cubics(cubics_, bin, within, count, of_items);
                for (int64_t j = 0; j < count; ++j) row_[from + j] = slope(of_items[j], scaled(row_[from + j]));
            });
        }
        for (int64_t p = 0; p < own_; ++p) row_[item_of_[p]] = slope(slopes_[p], scaled_[p]);
    }

    const Task& task_;
    const int64_t first_, count_;
    float* const row_;
    const float inverse_tau_, delta_;
    // of every bin
    FourSums* const counts_;
    Four* const cubics_;
    int32_t* const in_bin_;
    // of every point
    float *const scaled_, *const left_, *const powers_, *const slopes_, *const sums_, *const weights_;
    int32_t* const item_of_;                           // of points that are items
    int64_t own_ = 0, first_node_ = 0, width_ = 0;     // points that are items; where nodes begin; points in all
    Nodes nodes_;
    float lowest_ = 0, highest_score_ = 0, highest_ = 0;
};

int64_t threads_of(const Task& task) { return std::max<int64_t>(1, std::min(task.threads, task.rows)); }

}  // namespace

const Operation smooth_places{
    [](const Task& task) { return threads_of(task) * List::floats(task) + kAlign; },
    [](const Task& task) {
        const int64_t size = List::floats(task), most_points = List::most_points(task), threads = threads_of(task);
        float* const base = aligned(task.workspace);
        run_team(task, threads, [&](const int64_t index) {
            const int64_t to = task.rows * (index + 1) / threads;
            for (int64_t u = task.rows * index / threads; u < to; ++u) List(task, u, base + index * size, most_points).run();
        });
    }};

}  // namespace talos::TALOS_LEVEL
