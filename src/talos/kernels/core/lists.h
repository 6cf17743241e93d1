// The interface of losses of whole lists: plain structs of numbers and pointers, as in sweep.h.
// talos/kernels/library.py repeats them field by field.
#pragma once

#include "sweep.h"

namespace talos {

// SmoothI@K: the lists of some users, each with some positives.
struct Lists {
    int64_t users, items, k, threads;
    Team team;
    const int64_t* start;       // (users + 1)
    const int64_t* items_of;    // positives of user u: items_of[start[u] .. start[u + 1]), each once
    const float* coefficients;  // one for each positive: its factor in the sum whose slopes are computed
    float inverse_tau, delta;
    float* workspace;           // smooth_places_workspace_bytes()
    float* scores;              // (users, items); replaced by the slopes
    float* values;              // one for each positive: 1 - 1/K Σ_r I^r
};

#define TALOS_DECLARE_LISTS(name)                              \
    namespace name {                                           \
    int64_t smooth_places_workspace_bytes(const Lists& task);  \
    void smooth_places(const Lists& task);                     \
    }

TALOS_DECLARE_LISTS(plain)
TALOS_DECLARE_LISTS(avx2)
TALOS_DECLARE_LISTS(avx512)
TALOS_DECLARE_LISTS(neon)

}  // namespace talos
