// The interface between Python and the core: one struct of numbers and pointers for every operation.
//
// The core lists its fields, operations and kinds at run time (dispatch.cpp); talos/kernels/core.py builds its own struct from
// that list, so that nothing is written down twice.
#pragma once

#include <cstdint>

namespace talos {

// Entry points of the OpenMP runtime that the process uses already, or null.
typedef void (*Parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel
typedef int (*TeamSize)();                                                                    // omp_get_num_threads

// The fields. An operation reads those that its own comment names. Matrices are dense, row-major, float32. A row is a query: a
// user, or a position of a history. CSR offsets need not start at 0.
#define TALOS_FIELDS(X)                                                                                                  \
    X(int64_t, rows)               /* R */                                                                               \
    X(int64_t, items)              /* I */                                                                               \
    X(int64_t, dim)                /* d */                                                                               \
    X(int64_t, threads)            /* at most */                                                                         \
    X(Parallel, parallel)                                                                                                \
    X(TeamSize, team_size)                                                                                               \
    X(float*, workspace)           /* as many bytes as the operation asks for, aligned to 4 */                           \
    X(const float*, users)         /* (R, d) */                                                                          \
    X(const float*, table)         /* (I, d) item vectors */                                                             \
    /* options of a sweep */                                                                                             \
    X(int64_t, kind)               /* of φ, see losses.h; 0: the K best scores alone */                                  \
    X(const float*, params)        /* of φ or of another operation */                                                    \
    X(float, scale)                /* the factor of R */                                                                 \
    X(int64_t, k)                  /* find the K best scores, if above 0 */                                              \
    X(int64_t, kth_is_threshold)   /* use the K-th best score as β and ignore `thresholds` */                            \
    X(int64_t, inner_only)         /* pairs: gradients of Σ weight_i · R_i, not of h(R_i) */                             \
    X(int64_t, bfloat16)           /* round the factors of products to bfloat16, if the processor can multiply these */  \
    X(int64_t, gradients)          /* compute them */                                                                    \
    X(int64_t, users_per_block)    /* 0: chosen by cache size */                                                         \
    X(const float*, thresholds)    /* (R) β, or null for 0 */                                                            \
    X(const float*, weights)       /* (R) or, for pairs, (P): factors of R in the gradients */                           \
    /* CSR matrices */                                                                                                   \
    X(const int64_t*, excluded_start) /* (R + 1) or null */                                                              \
    X(const int64_t*, excluded)    /* items that are no negatives of a row, ascending */                                 \
    X(const int64_t*, indptr)      /* (R + 1) positives, or other entries, of each row */                                \
    X(const int64_t*, indices)     /* (P) their items */                                                                 \
    X(const float*, positive_scores) /* (P) may be the memory of `excluded_scores`, which is written first */            \
    X(const float*, slopes)        /* (P) ∂L/∂s of the positives */                                                      \
    /* results of a sweep, overwritten; gradients are of Σ_r weight_r · R_r, or Σ_i weight_i · h(R_i) for pairs */       \
    X(float*, sums)                /* (R) or, for pairs, (P): R; -inf for a log-sum of pairs over nothing */             \
    X(float*, normalizer)          /* (R) log Σφ, or Σφ for a mean; not for pairs */                                     \
    X(float*, user_gradient)       /* (R, d) */                                                                          \
    X(float*, item_gradient)       /* (I, d) */                                                                          \
    X(float*, parameter_gradient)  /* (number of parameters), for a φ that learns some of them */                        \
    X(float*, positive_slopes)     /* (P) gradient in the scores of the positives, for pairs */                          \
    X(float*, excluded_scores)     /* one for each of `excluded`, or null */                                             \
    X(float*, kth)                 /* (R) where k > 0 */                                                                 \
    X(float*, best)                /* (R, k) the K best scores in any order, or null */                                  \
    /* other operations */                                                                                               \
    X(int64_t, steps)                                                                                                    \
    X(const float*, gram)          /* (d, d) */                                                                          \
    X(const float*, gradient)      /* (R, d) */                                                                          \
    X(float*, lengths)             /* (I) */                                                                             \
    X(float*, out)                                                                                                       \
    X(float*, mean)                                                                                                      \
    X(float*, square)

struct Task {
#define TALOS_FIELD(type, name) type name;
    TALOS_FIELDS(TALOS_FIELD)
#undef TALOS_FIELD
};

// Sizes of the workspace are in floats. Everything that an operation needs comes from there: none allocates memory.
struct Operation {
    int64_t (*workspace)(const Task& task);
    void (*run)(const Task& task);
};

constexpr int64_t no_workspace(const Task&) { return 0; }

// Operations have a version for each instruction set (vector.h); a sweep has one with bfloat16 products, too.
#define TALOS_OPERATIONS(X) \
    X(sweep) X(pair_scores) X(unit_rows) X(add_positives) X(adam_rows) X(least_squares) X(smooth_places)

#define TALOS_DECLARE(name) extern const Operation name;
namespace plain { TALOS_OPERATIONS(TALOS_DECLARE) }
namespace avx2 { TALOS_OPERATIONS(TALOS_DECLARE) }
namespace avx512 { TALOS_OPERATIONS(TALOS_DECLARE) }
namespace avx512bf16 { TALOS_DECLARE(sweep) }
namespace neon { TALOS_OPERATIONS(TALOS_DECLARE) }
#undef TALOS_DECLARE

}  // namespace talos
