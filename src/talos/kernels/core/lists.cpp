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
// A list and a few rows of workspace stay in cache, and users are split between the threads.
//
// Compiled once per instruction set, see vector.h.
#include "lists.h"

#include <algorithm>

#include "losses.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int kArrays = 4;

int64_t padded(const int64_t items) { return (items + kWidth - 1) / kWidth * kWidth; }

int64_t most_positives(const Lists& task) {
    int64_t most = 0;
    for (int64_t u = 0; u < task.users; ++u) most = std::max(most, task.start[u + 1] - task.start[u]);
    return most;
}

// Floats of workspace that a thread has: arrays of a list's length, then one number for each positive.
int64_t floats_per_thread(const Lists& task) { return kArrays * padded(task.items) + padded(most_positives(task)); }

// One user's list.
class List {
public:
    List(const Lists& task, const int64_t user, float* const memory)
        : task_(task), first_(task.start[user]), count_(task.start[user + 1] - first_), width_(padded(task.items)),
          row_(task.scores + user * task.items), scaled_(memory), left_(scaled_ + width_), powers_(left_ + width_),
          slopes_(powers_ + width_), places_(slopes_ + width_) {}

    void run() {
        if (count_ == 0) return std::fill_n(row_, task_.items, 0.0f), void();
        prepare();
        for (int64_t r = 0; r < task_.k; ++r) take_place();
        finish();
    }

private:
    int64_t item(const int64_t i) const { return task_.items_of[first_ + i]; }

    // 1 for the items of the last vector, 0 for what completes it.
    Vector inside(const int64_t j) const {
        float ones[kWidth];
        for (int64_t i = 0; i < kWidth; ++i) ones[i] = j + i < task_.items ? 1.0f : 0.0f;
        return load(ones);
    }

    void prepare() {
        lowest_ = row_[0];
        for (int64_t j = 1; j < task_.items; ++j) lowest_ = row_[j] < lowest_ ? row_[j] : lowest_;
        std::fill_n(scaled_ + task_.items, width_ - task_.items, 0.0f);
        for (int64_t j = 0; j < task_.items; ++j) scaled_[j] = (row_[j] - lowest_) * task_.inverse_tau;
        std::fill_n(left_, width_, 1.0f);
        std::fill_n(slopes_, width_, 0.0f);
        std::fill_n(places_, count_, 0.0f);
        Vector highest{};
        for (int64_t j = 0; j < width_; j += kWidth) highest = maximum(highest, load(scaled_ + j));
        highest_ = largest_of(highest);
    }

    // One softmax, what it adds to the places of the positives and to the slopes, and the factors of the next one.
    void take_place() {
        Vector total{};
        for (int64_t j = 0; j < width_; j += kWidth) {
            Vector power = exp2((load(scaled_ + j) * load(left_ + j) - highest_) * kLog2E);
            if (j + kWidth > task_.items) power *= inside(j);
            store(powers_ + j, power);
            total += power;
        }
        const float share = 1 / sum_of(total);
        float taken = 0;  // B
        for (int64_t i = 0; i < count_; ++i) {
            const int64_t j = item(i);
            const float place = powers_[j] * share, wanted = task_.coefficients[first_ + i] * place;
            places_[i] += place;
            taken += wanted;
            slopes_[j] += left_[j] * wanted;
        }
        Vector highest{};
        for (int64_t j = 0; j < width_; j += kWidth) {
            const Vector place = load(powers_ + j) * share, left = load(left_ + j);
            store(slopes_ + j, load(slopes_ + j) - taken * (left * place));
            const Vector next = left * (1.0f - task_.delta - place);
            store(left_ + j, next);
            highest = maximum(highest, load(scaled_ + j) * next);
        }
        highest_ = largest_of(highest);
    }

    void finish() {
        const float scale = -task_.inverse_tau / static_cast<float>(task_.k);
        for (int64_t i = 0; i < count_; ++i) task_.values[first_ + i] = 1 - places_[i] / static_cast<float>(task_.k);
        Vector total{};
        for (int64_t j = 0; j < width_; j += kWidth) total += load(slopes_ + j);
        const int64_t ties = std::count(row_, row_ + task_.items, lowest_);
        const float shared = sum_of(total) / static_cast<float>(std::max<int64_t>(1, ties));
        for (int64_t j = 0; j < task_.items; ++j) row_[j] = scale * (slopes_[j] - (row_[j] == lowest_ ? shared : 0.0f));
    }

    const Lists& task_;
    const int64_t first_, count_, width_;
    float *const row_, *const scaled_, *const left_, *const powers_, *const slopes_, *const places_;
    float lowest_ = 0, highest_ = 0;
};

}  // namespace

int64_t smooth_places_workspace_bytes(const Lists& task) { return 4 * task.threads * floats_per_thread(task); }

void smooth_places(const Lists& task) {
    const int64_t size = floats_per_thread(task);
    const int64_t threads = std::max<int64_t>(1, std::min(task.threads, task.users));
    run_team(task.team, threads, [&](const int64_t index) {
        const int64_t to = task.users * (index + 1) / threads;
        for (int64_t u = task.users * index / threads; u < to; ++u) List(task, u, task.workspace + index * size).run();
    });
}

}  // namespace talos::TALOS_LEVEL
