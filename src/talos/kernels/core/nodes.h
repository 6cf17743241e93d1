// Sums over all pairs of a user by way of nodes: many items' scores are replaced by a few equidistant ones.
//
// g(s - p) is smooth in s, so within a bin between two nodes it equals the cubic through the four nodes around it, up to an
// error of 3/128·(κ·width)⁴, about 1e-6 here, relative to g: its fourth derivative, and that of g', is at most κ⁴ times g (or
// κ⁵). A cubic's value is linear in its four values at the nodes. So
//   Σ_j g(s_j - p)            = Σ_m count_m g(y_m - p)     the items are spread over the nodes once, for all positives
//   Σ_i weight_i g'(s_j - p_i)  is read off the cubics of its values at the nodes, for all items
// which takes positives × nodes evaluations of g in place of positives × items.
#pragma once

#include <algorithm>
#include <cmath>

#include "losses.h"

namespace talos::TALOS_LEVEL {

constexpr int64_t kMostBins = 2048;
constexpr int64_t kBeside = 3;          // nodes more than bins: one before the first, two after the last
constexpr float kBinsPerScale = 12.0f;  // bins in 1/κ

typedef float Four __attribute__((vector_size(16)));
// What bins count is added up in double precision: an item's weight in a sum of a million would be lost in single precision.
typedef double FourSums __attribute__((vector_size(32)));

// The weights of the nodes at -1, 0, 1 and 2 in the value at t of the cubic through them: constant, t, t² and t³.
constexpr float kCubic[4][4] = {{0.0f, 1.0f, 0.0f, 0.0f},
                                {-1.0f / 3, -0.5f, 1.0f, -1.0f / 6},
                                {0.5f, -1.0f, 0.5f, 0.0f},
                                {-1.0f / 6, 0.5f, -0.5f, 1.0f / 6}};

// Where a user's nodes are; without bins, pairs are better evaluated one by one.
struct Nodes {
    int64_t bins = 0;
    float low = 0;       // the lowest score
    float per_unit = 0;  // bins in a unit of score

    // For items with scores from `low` to `high`. To spread an item and read its slope costs as much as to evaluate its pairs
    // with `few` positives.
    static Nodes of(const float low, const float high, const float kappa, const int64_t items, const int64_t positives,
                    const int64_t few) {
        const float wanted = (high - low) * kappa * kBinsPerScale;
        if (!(wanted < kMostBins - 1)) return {};  // a NaN, too
        const int64_t bins = static_cast<int64_t>(wanted) + 1;
        if (positives * (items - bins) <= few * items) return {};
        return {bins, low, kappa * kBinsPerScale};
    }

    int64_t count() const { return bins + kBeside; }
    int64_t padded_count() const { return round_up(count(), kWidth); }

    // How far above `low` the nodes are, of which there are padded_count(). Scores may be large and their range small.
    void offsets(float* const to) const {
        for (int64_t m = 0; m < padded_count(); ++m) to[m] = static_cast<float>(m - 1) / per_unit;
    }

    // The bin of every score, and where within it, from 0 to 1; excluded items are in a bin of their own, after the last.
    void locate(const float* const row, const int64_t width, int32_t* const bin, float* const within) const {
        for (int64_t j = 0; j < width; j += kWidth) {
            const Vector s = load(row + j), x = s <= kGone ? Vector{} : (s - low) * per_unit;
            const Integers last = Integers{} + static_cast<int32_t>(bins - 1);
            Integers b = __builtin_convertvector(x, Integers);
            b = b > last ? last : b;  // rounding
            store(within + j, x - __builtin_convertvector(b, Vector));
            b = s <= kGone ? last + 1 : b;
            std::memcpy(bin + j, &b, sizeof b);
        }
    }
};

// Adds items to what the four nodes around each bin count.
inline void spread(const int32_t* const bin, const float* const within, const int64_t width, FourSums* const counts) {
    Four c[4];
    std::memcpy(c, kCubic, sizeof c);
    for (int64_t j = 0; j < width; ++j) {
        const Four weights = c[0] + within[j] * (c[1] + within[j] * (c[2] + within[j] * c[3]));
        counts[bin[j]] += __builtin_convertvector(weights, FourSums);
    }
}

// How many items every node counts for.
inline void counts_of_nodes(const Nodes& nodes, const FourSums* const of_bins, float* const counts) {
    for (int64_t m = 0; m < nodes.padded_count(); ++m) {
        double sum = 0;
        for (int64_t b = std::max<int64_t>(0, m - 3); b <= std::min(m, nodes.bins - 1); ++b) sum += of_bins[b][m - b];
        counts[m] = static_cast<float>(sum);
    }
}

// Calls work(first node, g, g') for every vector of nodes and one positive.
template <class Pairs, class Work>
inline void for_nodes(const Pairs& pairs, const Nodes& nodes, const float* const offsets, const float positive, const float shift,
                      const Work& work) {
    for (int64_t m = 0; m < nodes.padded_count(); m += kWidth) {
        typename Pairs::Sum value;
        const Vector slope = pairs.far(load(offsets + m), splat(positive - nodes.low), splat(shift), value);
        work(m, value.total, slope);
    }
}

// The cubic of each bin through the values at the nodes; that of excluded items is 0.
inline void cubics_through(const Nodes& nodes, const float* const values, Four* const cubics) {
    for (int64_t b = 0; b < nodes.bins; ++b)
        for (int power = 0; power < 4; ++power) {
            float sum = 0;
            for (int i = 0; i < 4; ++i) sum += kCubic[power][i] * values[b + i];
            cubics[b][power] = sum;
        }
    cubics[nodes.bins] = Four{};
}

// The values of the cubics at every item.
inline void read_cubics(const Four* const cubics, const int32_t* const bin, const float* const within, const int64_t width,
                        float* const values) {
    for (int64_t j = 0; j < width; ++j) {
        const Four c = cubics[bin[j]];
        values[j] = c[0] + within[j] * (c[1] + within[j] * (c[2] + within[j] * c[3]));
    }
}

}  // namespace talos::TALOS_LEVEL
