// The interface between Python and the core: plain structs of numbers and pointers.
// talos/kernels/library.py repeats them field by field.
#pragma once

#include <cstdint>

namespace talos {

// Which φ is summed over a user's negatives, or which g over the pairs of a positive and a negative, d = s_j - s_i.
// core_passes.py has the same numbers.
enum Kind : int32_t {
    kNothing = 0,       // no loss: K-th scores only
    kExp = 1,           // φ = e^{κs}
    kSigmoidPower = 2,  // φ = σ(ω(s - β))^κ
    kHinge = 3,         // φ = (1 + s - β)+, reduced to its mean
    kPartialAUC = 4,    // φ of LLPAUC, reduced to its mean; see losses.h
    kSoftplusPairs = 5,      // g = log(1 + e^d), reduced to its mean
    kSigmoidPowerPairs = 6,  // g = (2σ(d))^κ, reduced to log Σ
    kSigmoidRankPairs = 7,   // g = σ(κd), reduced to R = Σ, of which h = σ(λ(1 + R - K))
};

constexpr bool is_pairwise(const int32_t kind) { return kind >= kSoftplusPairs; }

// Entry points of the OpenMP runtime that the process uses already (GOMP_parallel, omp_get_num_threads), or null.
struct Team {
    void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
    int (*size)();
};

// One pass over all items for a batch of users. Matrices are dense, row-major, float32.
struct Task {
    int64_t users, items, dim;
    const float* user_vectors;  // (users, dim)
    const float* item_vectors;  // (items, dim)

    // Items that are no negatives of user u: excluded[excluded_start[u] .. excluded_start[u + 1]), ascending. May be null.
    const int64_t* excluded_start;
    const int64_t* excluded;

    const float* thresholds;    // (users) or null for 0
    const float* coefficients;  // (users) the factor of each R_u in the gradients; null without gradients

    int32_t kind;
    float params[5];          // by kind: κ; κ, ω; none; b, γ, s_n, β, κ; none; κ; κ, K, λ
    float scale;
    int32_t bfloat16;         // allow factors of products to be rounded to bfloat16, if the processor supports that
    int64_t k;                // find the K-th scores, if above 0
    int32_t kth_is_threshold; // use the K-th score as β_u and ignore `thresholds`
    int32_t threads;
    int64_t users_per_block;  // 0: chosen by cache size
    Team team;

    // For pairs only. Positives of user u: positive_start[u] .. positive_start[u + 1). Their scores may be the memory of
    // `excluded_scores`, if positives are what is excluded: these are written before they are read.
    const int64_t* positive_start;
    const float* positive_scores;
    const float* positive_coefficients;  // the factor of each h(R_i) in the gradients; null without gradients
    int32_t inner_only;                  // gradients of Σ coefficient_i · R_i, not of h(R_i)

    float* workspace;         // workspace_bytes(task) bytes, any alignment
    // Results. Gradients are of Σ_u coefficient_u · R_u; they are overwritten, not added to. If both are null, only the
    // sums are computed.
    float* negative;          // (users) R_u
    float* normalizer;        // (users) log Σφ, or Σφ for a mean
    float* user_gradient;     // (users, dim) or null
    float* item_gradient;     // (items, dim) or null
    float* kth;               // (users), where k > 0
    float* best;              // (users, k) the K best scores of all items in any order, or null
    float* excluded_scores;   // one for each of `excluded`, or null
    float* moments;           // (users, 2) further sums, times the factor of R_u; only for gradients of kPartialAUC
    // Of pairs, in place of `negative` and `normalizer`. Gradients are of Σ_i coefficient_i · h(R_i).
    float* inner;             // (positives) R_i; -inf for a log-sum over nothing
    float* positive_slopes;   // (positives) the gradient in the positives' scores, or null
};

// Divides rows by their lengths.
struct Rows {
    int64_t count, dim, threads;
    Team team;
    const float* rows;  // (count, dim)
    float* unit;        // (count, dim)
    float* lengths;     // (count)
};

// Adds the positives' part of both gradients, and converts the items' gradient to that of the rows before normalisation.
struct Positives {
    int64_t users, items, dim, threads;
    Team team;
    const int64_t* start;       // (users + 1)
    const int64_t* items_of;    // positives of user u: items_of[start[u] .. start[u + 1]), ascending
    const float* slopes;        // ∂L/∂s of each positive
    const float* user_vectors;  // (users, dim)
    const float* item_vectors;  // (items, dim)
    const float* lengths;       // (items) the lengths that item vectors were divided by, or null if they were not
    float* user_gradient;       // (users, dim), added to
    float* item_gradient;       // (items, dim), added to, then converted if there are lengths
};

// Half a sweep of alternating least squares: for each row r with the columns P_r, a few steps of conjugate gradients on
//   (G + α Σ_{i∈P_r} w_ri y_i y_iᵀ) x_r = Σ_{i∈P_r} (1 + α w_ri) y_i,   G = Σ_i y_i y_iᵀ + λ·1
struct LeastSquares {
    int64_t rows, dim, threads, steps;
    Team team;
    const int64_t* start;     // (rows + 1)
    const int64_t* items_of;  // items_of[start[r] .. start[r + 1])
    const float* weights;     // w of each of items_of, or null: all are 1
    const float* fixed;       // (columns, dim) y
    const float* gram;        // (dim, dim) G
    float weight;             // α
    float* solution;          // (rows, dim) x: initial values, overwritten by the result
};

// The functions are compiled once per instruction set, see vector.h.
#define TALOS_DECLARE_LEVEL(name)                 \
    namespace name {                              \
    int64_t workspace_bytes(const Task& task);    \
    void sweep(const Task& task);                 \
    void unit_rows(const Rows& task);              \
    void add_positives(const Positives& task);    \
    void least_squares(const LeastSquares& task); \
    }

TALOS_DECLARE_LEVEL(plain)
TALOS_DECLARE_LEVEL(avx2)
TALOS_DECLARE_LEVEL(avx512)
TALOS_DECLARE_LEVEL(avx512bf16)  // only the sweep
TALOS_DECLARE_LEVEL(neon)

}  // namespace talos
