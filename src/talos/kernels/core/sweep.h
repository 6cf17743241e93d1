// What crosses the border between Python and the core: one plain struct of numbers and pointers.
#pragma once

#include <cstdint>

namespace talos {

// Which φ is summed over a user's negatives; the numbers are known to compiled.py.
enum Kind : int32_t {
    kNothing = 0,       // no loss: the K-th scores alone
    kExp = 1,           // φ = e^{κs}
    kSigmoidPower = 2,  // φ = σ(ω(s - β))^κ
    kHinge = 3,         // φ = (1 + s - β)+, summed up as a mean
    kPartialAUC = 4,    // φ of LLPAUC, likewise; see losses.h
};

// Entry points of an OpenMP run-time that is there already, or null: GOMP_parallel and omp_get_num_threads.
struct Team {
    void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
    int (*size)();
};

// One pass over all items for a batch of users. Matrices are dense, row-major, float32.
struct Task {
    int64_t users, items, dim;
    const float* user_vectors;  // (users, dim)
    const float* item_vectors;  // (items, dim)

    // Pairs that are no negatives: excluded[excluded_start[u] .. excluded_start[u + 1]) ascend. May be null.
    const int64_t* excluded_start;
    const int64_t* excluded;

    const float* thresholds;    // (users) or null for 0
    const float* coefficients;  // (users) what each R_u counts; null where there are no gradients

    int32_t kind;
    float params[5];          // κ; κ, ω; none; b, γ, s_n, β, κ
    float scale;
    int32_t bfloat16;         // products may be made of numbers rounded to it, where the processor has them
    int64_t k;                // K-th scores are wanted if above 0
    int32_t kth_is_threshold; // β_u is this pass's own K-th score, whatever `thresholds` says
    int32_t threads;
    int64_t users_per_block;  // 0: by cache size
    Team team;

    float* workspace;         // workspace_bytes(task) of it, any alignment
    // Results. Gradients are of Σ_u coefficient_u · R_u and are written, not added to; where both are null the sums
    // alone are made, without the work for them.
    float* negative;          // (users) R_u
    float* normalizer;        // (users) log Σφ, or Σφ for a mean
    float* user_gradient;     // (users, dim) or null
    float* item_gradient;     // (items, dim) or null
    float* kth;               // (users), where k > 0
    float* best;              // (users, k) the K best scores of all items in any order, or null
    float* excluded_scores;   // one for each of `excluded`, or null
    float* moments;           // (users, 2) further sums, times what R_u counts; needed for gradients of kPartialAUC alone
};

// Rows to be divided by their lengths.
struct Rows {
    int64_t count, dim, threads;
    Team team;
    const float* rows;  // (count, dim)
    float* unit;        // (count, dim)
    float* lengths;     // (count)
};

// The positives' part of both gradients, and the way back through the items' lengths.
struct Positives {
    int64_t users, items, dim, threads;
    Team team;
    const int64_t* start;       // (users + 1)
    const int64_t* items_of;    // items_of[start[u] .. start[u + 1]) ascend
    const float* slopes;        // one for each positive: ∂L/∂s
    const float* user_vectors;  // (users, dim)
    const float* item_vectors;  // (items, dim)
    const float* lengths;       // (items) by which item vectors were divided, or null if they were not
    float* user_gradient;       // (users, dim), added to
    float* item_gradient;       // (items, dim), added to, then taken through the lengths
};

// Half a sweep of alternating least squares: for each row r with the columns P_r, some steps of conjugate gradients on
//   (G + α Σ_{i∈P_r} y_i y_iᵀ) x_r = (1 + α) Σ_{i∈P_r} y_i,   G = Σ_i y_i y_iᵀ + λ·1
struct LeastSquares {
    int64_t rows, dim, threads, steps;
    Team team;
    const int64_t* start;     // (rows + 1)
    const int64_t* items_of;  // items_of[start[r] .. start[r + 1])
    const float* fixed;       // (columns, dim) y
    const float* gram;        // (dim, dim) G
    float weight;             // α
    float* solution;          // (rows, dim) x: where to start from, and the result
};

// The same functions exist once per instruction set, see vector.h.
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
TALOS_DECLARE_LEVEL(avx512bf16)  // the sweep alone

}  // namespace talos
