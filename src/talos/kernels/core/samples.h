// The interface of training with sampled negatives: plain structs of numbers and pointers, as in sweep.h.
// talos/kernels/library.py repeats them field by field.
#pragma once

#include "sweep.h"

namespace talos {

// A batch of users in groups of consecutive ones. Each group has a sample of items of its own, which are its negatives.
struct Groups {
    // What to compute, for the whole batch. `item_vectors` is the table of `items` rows that samples are drawn from;
    // `excluded` are places in the sample of the user's group. K-th scores are not found.
    Task task;
    int64_t groups, sample;   // how many groups, and how many items each has drawn
    const int64_t* first;     // (groups + 1) users of group g: first[g] .. first[g + 1)
    const int64_t* drawn;     // (groups, sample) rows of item_vectors; a row may occur more than once
    float* scores;            // (users, sample) of group_scores
};

// Scores of positives: one dot product each.
struct Pairs {
    int64_t users, dim, threads;
    Team team;
    const int64_t* start;       // (users + 1)
    const int64_t* items_of;    // positives of user u: items_of[start[u] .. start[u + 1])
    const float* user_vectors;  // (users, dim)
    const float* item_vectors;  // (items, dim)
    float* scores;              // one for each of items_of
};

// One step of Adam for some rows of a table; no other row is read or written.
struct AdamRows {
    int64_t count, dim, threads;
    Team team;
    const int64_t* rows;     // (count), distinct
    const float* gradient;   // (count, dim)
    float* parameter;        // (all rows, dim)
    float* mean;             // likewise, first moments
    float* square;           // likewise, second moments
    float rest1, beta2, rest2;  // 1 - β1, β2, 1 - β2: not computed here, because float has too few digits for 1 - .999
    float epsilon, weight_decay;
    float rate;              // learning rate / (1 - β1^t)
    float root_correction;   // √(1 - β2^t)
};

// The sweep of a group is that of this instruction set, or the one with bfloat16 products.
struct SweepFunctions {
    int64_t (*workspace_bytes)(const Task& task);
    void (*sweep)(const Task& task);
};

#define TALOS_DECLARE_SAMPLES(name)                                                    \
    namespace name {                                                                   \
    int64_t group_workspace_bytes(const Groups& groups, const SweepFunctions& of);     \
    void group_sweep(const Groups& groups, const SweepFunctions& of);                  \
    void group_scores(const Groups& groups);                                           \
    void pair_scores(const Pairs& task);                                               \
    void adam_rows(const AdamRows& task);                                              \
    }

TALOS_DECLARE_SAMPLES(plain)
TALOS_DECLARE_SAMPLES(avx2)
TALOS_DECLARE_SAMPLES(avx512)
TALOS_DECLARE_SAMPLES(neon)

}  // namespace talos
