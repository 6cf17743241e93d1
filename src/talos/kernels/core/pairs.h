// Evaluates the pairs of one user: a row of items against the user's positives.
//
// A vector holds the scores of consecutive items; a few positives at a time stay in registers, and the slopes of the items add
// up over the positives.
#pragma once

#include <algorithm>

#include "losses.h"

namespace talos::TALOS_LEVEL {

// A user's positives: their scores, their shifts, and the factors of their slopes. The results, one for each, are added to.
struct PositivesOfUser {
    int64_t count;
    const float *scores, *near;  // the scores themselves, and what near() takes for them
    const float *shifts, *weights;
    float *sums, *slope_sums;
    float low, high;             // of the scores

    float centre() const { return 0.5f * low + 0.5f * high; }

    PositivesOfUser from(const int64_t first) const {
        PositivesOfUser rest = *this;
        rest.count -= first;
        for (const float** one : {&rest.scores, &rest.near, &rest.shifts, &rest.weights}) *one += first;
        for (float** one : {&rest.sums, &rest.slope_sums}) *one += first;
        return rest;
    }
};

// What is computed: Σg of each positive, or the slopes of items and positives, or both.
enum class Wanted { kSums, kSlopes, kBoth };

// Q positives against `width` items (a multiple of kTogether vectors).
template <Wanted kWanted, bool kIsNear, int Q, class Pairs>
inline void evaluate_some(const Pairs& pairs, const float* const items, const int64_t width, const PositivesOfUser& positives,
                          float* const slopes) {
    Vector positive[Q], shift[Q], weight[Q], slope_sums[Q] = {};
    typename Pairs::Sum sums[Q];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
        positive[q] = splat((kIsNear ? positives.near : positives.scores)[q]), shift[q] = splat(positives.shifts[q]);
        weight[q] = kWanted == Wanted::kSums ? Vector{} : splat(positives.weights[q]);
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
        if (kWanted != Wanted::kSlopes) positives.sums[q] += sum_of(sums[q].total);
        if (kWanted != Wanted::kSums) positives.slope_sums[q] += sum_of(slope_sums[q]);
    }
}

template <Wanted kWanted, bool kIsNear, class Pairs>
void evaluate_all(const Pairs& pairs, const float* const items, const int64_t width, const PositivesOfUser& all,
                  float* const slopes) {
    int64_t i = 0;
    for (; i + 4 <= all.count; i += 4) evaluate_some<kWanted, kIsNear, 4>(pairs, items, width, all.from(i), slopes);
    if (i + 2 <= all.count) evaluate_some<kWanted, kIsNear, 2>(pairs, items, width, all.from(i), slopes), i += 2;
    if (i < all.count) evaluate_some<kWanted, kIsNear, 1>(pairs, items, width, all.from(i), slopes);
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

}  // namespace talos::TALOS_LEVEL
