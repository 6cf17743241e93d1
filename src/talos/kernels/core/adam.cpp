// Adam for the rows of a table that have a gradient.
//
// Compiled once per instruction set, see vector.h.
#include <algorithm>
#include <cmath>

#include "samples.h"
#include "team.h"

namespace talos::TALOS_LEVEL {
namespace {

constexpr int64_t kAhead = 2;  // rows that are fetched ahead of their use

// Not a loop over std::sqrt: that sets errno for negative numbers, and so is not vectorised.
inline Vector root(const Vector x) {
#if defined(__AVX512F__)
    return (Vector)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#else
    Vector y = x;
    for (int i = 0; i < kWidth; ++i) y[i] = std::sqrt(x[i]);
    return y;
#endif
}

void fetch(const float* const row, const int64_t dim) {
    for (int64_t k = 0; k < dim; k += 16) __builtin_prefetch(row + k, 1);
}

// One vector of a row: g ← g + λp, m ← m + (1-β1)(g - m), v ← β2·v + (1-β2)g², p ← p - rate · m / (√v/√(1-β2^t) + ε).
inline void step(const AdamRows& task, const Vector gradient, Vector& p, Vector& m, Vector& v) {
    const Vector g = gradient + task.weight_decay * p;
    m = m + task.rest1 * (g - m);
    v = task.beta2 * v + task.rest2 * (g * g);
    p = p - task.rate * m / (root(v) / task.root_correction + task.epsilon);
}

void update_row(const AdamRows& task, const int64_t place) {
    const int64_t dim = task.dim, row = task.rows[place] * dim;
    const float* const gradient = task.gradient + place * dim;
    float *const p = task.parameter + row, *const m = task.mean + row, *const v = task.square + row;
    int64_t k = 0;
    for (; k + kWidth <= dim; k += kWidth) {
        Vector values = load(p + k), mean = load(m + k), square = load(v + k);
        step(task, load(gradient + k), values, mean, square);
        store(p + k, values), store(m + k, mean), store(v + k, square);
    }
    if (k == dim) return;
    float last[4][kWidth] = {};
    const int64_t left = dim - k;
    std::copy_n(gradient + k, left, last[0]), std::copy_n(p + k, left, last[1]);
    std::copy_n(m + k, left, last[2]), std::copy_n(v + k, left, last[3]);
    Vector values = load(last[1]), mean = load(last[2]), square = load(last[3]);
    step(task, load(last[0]), values, mean, square);
    store(last[1], values), store(last[2], mean), store(last[3], square);
    std::copy_n(last[1], left, p + k), std::copy_n(last[2], left, m + k), std::copy_n(last[3], left, v + k);
}

}  // namespace

void adam_rows(const AdamRows& task) {
    in_parallel(task.team, task.count, 4 * task.count * task.dim, task.threads, [&](const int64_t from, const int64_t to) {
        for (int64_t i = from; i < to; ++i) {
            if (i + kAhead < to) {
                const int64_t next = task.rows[i + kAhead] * task.dim;
                fetch(task.parameter + next, task.dim), fetch(task.mean + next, task.dim), fetch(task.square + next, task.dim);
            }
            update_row(task, i);
        }
    });
}

}  // namespace talos::TALOS_LEVEL
