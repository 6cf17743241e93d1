// Sums of φ over the negatives of every user, both gradients and the K best scores, in one pass over all items.
//
// Reads rows, items, dim, users, table and the options of a sweep. Steps 1, 2 and 4 are in worker.h; this is step 3.
#include <type_traits>

#include "worker.h"

namespace talos::TALOS_LEVEL {

void pair_sweep(const Task& task);  // pair_sweep.cpp

namespace {

class PhiSweep : Worker {
public:
    PhiSweep(Shared& shared, const int64_t index) : Worker(shared, index) {}

    void run() {
        const Traits& traits = kTraits[task_.kind];
        if (!index_ && with_gradients() && traits.learnt) std::fill_n(task_.parameter_gradient, traits.params, 0.0f);
        sweep_blocks([this] { with_functor<false>(task_, [this](const auto& phi) { evaluate(phi); }); });
    }

private:
    template <class Functor>
    void evaluate(const Functor& phi) {
        if constexpr (!std::is_void_v<typename Functor::Near>)
            if (is_near(phi)) return evaluate_with(typename Functor::Near(task_));
        evaluate_with(phi);
    }

    template <class Functor>
    bool is_near(const Functor& phi) const {
        float items = 0, users = 0, beta = 0;
        for (int64_t t = 0; t < at_.threads; ++t) items = std::max(items, *of_thread(t, at_.norm));
        for (int64_t u = 0; u < count_; ++u) {
            const float* const vector = task_.users + (first_user_ + u) * task_.dim;
            users = std::max(users, dot(vector, vector, task_.dim));
            beta = std::max(beta, std::fabs(beta_[u]));
            const float highest = highest_negative(u);
            if (highest > kGone && phi.is_far_below(highest, beta_[u])) return false;
        }
        return phi.is_near(std::sqrt(items * users) * kRounding, beta);
    }

    template <class Functor>
    void evaluate_with(const Functor phi) {
        for (int64_t u = 0; u < at_.block; ++u) {
            const float highest = Functor::kNeedsHighest ? highest_negative(u) : kGone;
            shift_[u] = highest <= kGone ? 0.0f : phi.shift(highest, beta_[u]);  // no negatives: any shift will do
        }
        std::fill_n(own(at_.sums), Functor::kSums * at_.block, 0.0f);
        for (int64_t tile = begin_; tile < end_; tile += kTile) {
            const int64_t stop = std::min(tile + kTile, end_);
            transform(phi, tile, stop);
            if (with_gradients()) add_user_gradient(tile, stop);
        }
        shared_.barrier.wait();
        finish_block(phi);
    }

    // Replaces the scores of a tile by slopes and adds φ to the users' sums.
    template <class Functor>
    void transform(const Functor& phi, const int64_t from, const int64_t to) const {
        float* const all_sums = own(at_.sums);
        for (int64_t column = 0; column < at_.block; column += kDeep * kWidth) {
            Vector beta[kDeep], shift[kDeep], sums[kDeep][Functor::kSums] = {};
            for (int v = 0; v < kDeep; ++v)
                beta[v] = load(beta_ + column + v * kWidth), shift[v] = load(shift_ + column + v * kWidth);
            float* const scores = scores_of(from, column);
            if ((to - from) % kDeep) std::fill_n(scores + (to - from) * kColumns, kColumns, kGone);  // completes the last word
            for (int64_t j = 0; j < to - from; j += kDeep) {
                float* const at = scores + j * kColumns;
                Vector slopes[kDeep][kDeep];
#pragma GCC unroll 2
                for (int i = 0; i < kDeep; ++i)
#pragma GCC unroll 2
                    for (int v = 0; v < kDeep; ++v) {
                        const Vector score = load(at + i * kColumns + v * kWidth);
                        slopes[i][v] = phi(score, beta[v], shift[v], sums[v]);
                    }
                keep_slopes(slopes, at);
            }
            for (int v = 0; v < kDeep; ++v)
                for (int i = 0; i < Functor::kSums; ++i) {
                    float* const at = all_sums + i * at_.block + column + v * kWidth;
                    store(at, load(at) + sums[v][i]);
                }
        }
    }

    // One of a user's sums.
    float total_of(const int64_t sum, const int64_t u) const { return over_threads(at_.sums + sum * at_.block + u); }

    // Now that Σφ is known: computes R and, for gradients, the factor of each user's slopes, the users' gradient and the scaled
    // user vectors for the items' gradient.
    template <class Functor>
    void finish_block(const Functor& phi) {
        for (int64_t u = 0; u < count_; ++u) {
            const int64_t user = first_user_ + u, left = items_left(u);
            const float total = total_of(0, u);
            const float log_sum = std::log(total) + phi.log_shift(shift_[u]);
            if (with_gradients()) {
                const float inverse = left == 0 ? 0.0f : 1.0f / (Functor::kLogSum ? total : static_cast<float>(left));
                factor_[u] = inverse * task_.scale * task_.weights[user] * phi.slope_factor();
                if constexpr (Functor::kLearnt > 0)  // by the first thread, for all users in their order
                    if (!index_) phi.add_gradient([&](const int i) { return total_of(i, u); }, factor_[u], task_.parameter_gradient);
            }
            if (u % at_.threads != index_) continue;
            const float mean = left == 0 ? 0.0f : total / static_cast<float>(left);
            task_.sums[user] = left == 0 ? 0.0f : task_.scale * (Functor::kLogSum ? log_sum : mean);
            task_.normalizer[user] = !Functor::kLogSum ? total : left == 0 ? kNothingYet : log_sum;
            if (with_gradients()) report_user_gradient(u);
        }
        if (with_gradients()) scale_users();
    }
};

}  // namespace

const Operation sweep{[](const Task& task) { return Layout(task).total; },
                      [](const Task& task) { kTraits[task.kind].pairs ? pair_sweep(task) : run_workers<PhiSweep>(task); }};

}  // namespace talos::TALOS_LEVEL
