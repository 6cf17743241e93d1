// The loss-specific part of the core: one functor per kind of φ or g, and the table of kinds at the end of this file. A new kind
// is one functor and one line of that table.
//
// A functor is called with the scores s and thresholds β of as many users as a vector has lanes. It adds φ / e^{log_shift}
// to its first sum; the shift keeps the sum within range. Sums for learnt parameters follow. It returns
// ∂φ/∂s / (e^{log_shift} · slope_factor). Scores at or below kGone mark excluded items: φ and the slope must be exactly 0
// there.
#pragma once

#include <algorithm>
#include <cmath>

#include "task.h"
#include "vector.h"

namespace talos::TALOS_LEVEL {

constexpr float kGone = -1e30f;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// log(1 + e) for e in [0, 1].
inline Vector log_of_one_and(const Vector e) {
    constexpr float c[] = {0.99999994f,   -0.499994934f, 0.333190948f,  -0.248429716f, 0.191059664f,
                           -0.136631593f, 0.0782249272f, -0.0295046102f, 0.00523253763f};
    return e * polynomial(c, e);
}

// e^{-|x|}.
inline Vector exp_of_minus_abs(const Vector x) { return exp2((x < Vector{} ? x : -x) * kLog2E); }

// σ(x) and log(1 + e^x), from e = e^{-|x|}.
inline Vector sigmoid(const Vector x, const Vector e) { return (x < Vector{} ? e : splat(1.0f)) / (1.0f + e); }
inline Vector softplus(const Vector x, const Vector e) { return (x < Vector{} ? Vector{} : x) + log_of_one_and(e); }

// log 2σ(x) and 1 - σ(x) for |x| ≤ kNear, which holds for cosines: ½x - log cosh(x/2) and ½ - ½tanh(x/2) by short polynomials
// in x², the second argument.
constexpr float kNear = 2.04f;

inline Vector near_log_twice_sigmoid(const Vector x, const Vector square) {
    constexpr float c[] = {0.125f,          -0.00520830601f,  0.00034711507f, -2.61904715e-05f,
                           2.01705825e-06f, -1.33028422e-07f, 5.03809261e-09f};
    return 0.5f * x - square * polynomial(c, square);
}

inline Vector near_one_minus_sigmoid(const Vector x, const Vector square) {
    constexpr float c[] = {0.249999985f,    -0.0208329409f,   0.00208179699f, -0.000208507976f,
                           1.96543406e-05f, -1.47653361e-06f, 6.01869417e-08f};
    return 0.5f - x * polynomial(c, square);
}

// The base-2 logarithm of σ(x)^κ.
inline float log2_sigmoid_power(const float x, const float kappa) {
    return kappa * kLog2E * (std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))));
}

// Adds σ(x)^κ / 2^shift to a sum; returns that times 1 - σ(x).
inline Vector add_sigmoid_power(const Vector x, const float kappa, const Vector shift, Vector& sum) {
    const Vector zero{}, e = exp_of_minus_abs(x);
    const Vector log_sigmoid = (x < zero ? x : zero) - log_of_one_and(e);
    const Vector power = exp2(log_sigmoid * (kappa * kLog2E) - shift);
    sum += power;
    return power * (x < zero ? splat(1.0f) : e) / (1.0f + e);
}

// What most functors declare; each says only where it differs.
struct Phi {
    typedef void Near;                         // a faster functor, for scores near the threshold
    static constexpr int kParams = 0;          // how many parameters there are,
    static constexpr int kFree = 0;            // how many of these, the first ones, need not be positive,
    static constexpr int kLearnt = 0;          // and how many of these, the first ones, are learnt
    static constexpr int kSums = 1;
    static constexpr bool kLogSum = false;     // R is log Σφ, not the mean
    static constexpr bool kNeedsHighest = false;  // the shift depends on the highest score
    static constexpr bool kPairs = false;

    float slope_factor() const { return 1.0f; }
    float shift(float, float) const { return 0.0f; }
    float log_shift(float) const { return 0.0f; }
};

// φ = e^{κs}, as e^{κ(s - highest)}.
struct Exp : Phi {
    static constexpr int kParams = 1;
    static constexpr bool kLogSum = true, kNeedsHighest = true;
    float kappa;

    explicit Exp(const Task& task) : kappa(task.params[0]) {}
    float slope_factor() const { return kappa; }
    float shift(const float highest, float) const { return highest; }
    float log_shift(const float shift) const { return kappa * shift; }
    Vector operator()(const Vector s, Vector, const Vector shift, Vector (&sums)[1]) const {
        const Vector phi = exp2((s - shift) * (kappa * kLog2E));
        sums[0] += phi;
        return phi;
    }
};

// φ = σ(ω(s - β))^κ for |ω(s - β)| ≤ kNear. φ is taken relative to σ(0)^κ, so that the exponent is small, and hence precise,
// around the threshold.
struct SigmoidPowerNear : Phi {
    static constexpr bool kLogSum = true;
    static constexpr float kMaxPower = 55.0f;  // e^{-1.46·κ} and e^{0.6·κ} are within float's range
    float kappa, omega;

    explicit SigmoidPowerNear(const Task& task) : kappa(task.params[0]), omega(task.params[1]) {}
    float slope_factor() const { return kappa * omega; }
    float log_shift(float) const { return -kappa * kLn2; }
    Vector operator()(const Vector s, const Vector beta, Vector, Vector (&sums)[1]) const {
        const Vector x = s <= kGone ? Vector{} : (s - beta) * omega, square = x * x;
        const Vector power = exp2_within(near_log_twice_sigmoid(x, square) * (kappa * kLog2E));
        const Vector phi = s <= kGone ? Vector{} : power;
        sums[0] += phi;
        return phi * near_one_minus_sigmoid(x, square);
    }
};

// The same for any argument; `shift` is the base-2 logarithm of the largest φ.
struct SigmoidPower : SigmoidPowerNear {
    typedef SigmoidPowerNear Near;
    static constexpr int kParams = 2;
    static constexpr bool kNeedsHighest = true;
    static constexpr float kFarBelow = 60.0f;  // -log2 of a φ, relative to φ at the threshold, whose inverse is a safe factor

    using SigmoidPowerNear::SigmoidPowerNear;
    float shift(const float highest, const float beta) const {
        return log2_sigmoid_power(omega * (highest - beta), kappa);
    }
    float log_shift(const float shift) const { return shift * kLn2; }

    // Whether scores up to `score` and thresholds up to `beta`, in size, are near.
    bool is_near(const float score, const float beta) const {
        return omega * (score + beta) <= kNear && kappa <= kMaxPower;
    }
    // Whether a user's highest score is so far below the threshold that the inverse of Near's sum might overflow as a factor.
    bool is_far_below(const float highest, const float beta) const {
        return kappa * omega * kLog2E * (highest - beta) < -kFarBelow;
    }

    Vector operator()(const Vector s, const Vector beta, const Vector shift, Vector (&sums)[1]) const {
        return add_sigmoid_power((s - beta) * omega, kappa, shift, sums[0]);
    }
};

// φ = (1 + s - β)+.
struct Hinge : Phi {
    explicit Hinge(const Task&) {}
    Vector operator()(const Vector s, const Vector beta, Vector, Vector (&sums)[1]) const {
        const Vector x = 1.0f + s - beta, zero{};
        sums[0] += x < zero ? zero : x;  // a NaN stays one
        return x > zero ? splat(1.0f) : zero;
    }
};

// φ = log(1 + e^{κx})/κβ with x = (q - b)² + 2(1 + γ)q - s_n, q = σ(s). Further sums: those of u and qu with u = σ(κx)/β.
struct PartialAUC : Phi {
    static constexpr int kParams = 5, kFree = 3, kLearnt = 3, kSums = 3;
    float b, gamma, s_n, fraction, kappa;

    explicit PartialAUC(const Task& task)
        : b(task.params[0]), gamma(task.params[1]), s_n(task.params[2]), fraction(task.params[3]), kappa(task.params[4]) {}
    Vector operator()(const Vector s, Vector, Vector, Vector (&sums)[3]) const {
        const Vector zero{}, q = sigmoid(s, exp_of_minus_abs(s));
        const Vector x = kappa * ((q - b) * (q - b) + (2 * (1 + gamma)) * q - s_n), e = exp_of_minus_abs(x);
        const Vector u = s <= kGone ? zero : sigmoid(x, e) * (1 / fraction);
        sums[0] += s <= kGone ? zero : softplus(x, e) * (1 / (kappa * fraction));
        sums[1] += u;
        sums[2] += q * u;
        return u * 2.0f * (q - b + (1 + gamma)) * q * (1.0f - q);
    }

    // Adds the derivatives of factor · Σφ in b, γ and s_n; sum(i) is the i-th of the sums.
    template <class Sum>
    void add_gradient(const Sum& sum, const float factor, float* const gradient) const {
        gradient[0] -= 2 * factor * (sum(2) - b * sum(1));
        gradient[1] += 2 * factor * sum(2);
        gradient[2] -= factor * sum(1);
    }
};

// Pairs of a positive and a negative: one class per kind, with g and its slope in d = s_j - s_i.
//
// near() is for differences within reach(), and for excluded items only if kNearTakesGone; far() is for all, and takes scores.
// Both add g / e^{log_shift} to a sum and return g' / (e^{log_shift} · slope_factor); of an excluded item both are exactly 0.
//   item(s, centre)      what near() takes for a vector of the items' scores
//   positive(p, centre)  what near() takes for a positive's score; the centre lies between the positives' scores
//   close(sum)           called after every kTogether vectors near(): a sum may collect that many before it adds them up
// The fourth derivatives of g and g' are at most steepness()⁴ times g and g', or what g and g' are nearby. For users with more
// than kFew positives nodes are faster (nodes.h).
constexpr int kTogether = 4;

// What most kinds of pairs declare.
struct Pairs : Phi {
    static constexpr bool kPairs = true;
    static constexpr bool kMean = false;           // R is the mean of g; else its sum, or the logarithm of that
    static constexpr bool kOnePass = false;        // slopes do not depend on R
    static constexpr bool kNearTakesGone = false;
    struct Sum {
        Vector total{};
    };

    float shift(float) const { return 0.0f; }
    float outer_slope(float) const { return 1.0f; }  // h'(R)
    Vector item(const Vector s, float) const { return s; }
    float positive(const float p, float) const { return p; }
    void close(Sum&) const {}
};

// e^{κ(s - centre)}, and 0 for excluded items.
inline Vector exp_of_item(const Vector s, const float centre, const float kappa) {
    return s <= kGone ? Vector{} : exp2((s - centre) * (kappa * kLog2E));
}

// log y for y from 1 on, below infinity. NaN gives NaN.
inline Vector log_from_one(const Vector y) {
    const Integers bits = (Integers)y, mantissa = (bits & 0x7fffff) | 0x3f800000;
    const Vector exponent = __builtin_convertvector((bits >> 23) - 127, Vector);
    return exponent * kLn2 + log_of_one_and((Vector)mantissa - 1.0f) + 0.0f * y;
}

// g = log(1 + e^d). Near, e^d is the product of one exponential per item and one per positive, and there is one logarithm for
// the product of kTogether factors 1 + e^d; their rounding makes an absolute error of 1e-7 in g.
struct SoftplusPairs : Pairs {
    static constexpr bool kMean = true, kOnePass = true, kNearTakesGone = true;
    static constexpr int64_t kFew = 20;
    struct Sum {
        Vector total{}, product = splat(1.0f);
    };

    explicit SoftplusPairs(const Task&) {}
    float reach() const { return 20.0f; }  // (1 + e^20)^4 is within float's range
    float steepness() const { return 1.0f; }
    Vector item(const Vector s, const float centre) const { return exp_of_item(s, centre, 1.0f); }
    float positive(const float p, const float centre) const { return std::exp(centre - p); }
    Vector near(const Vector item, const Vector positive, Vector, Sum& sum) const {
        const Vector e = item * positive, factor = 1.0f + e;
        sum.product *= factor;
        return e * reciprocal(factor);
    }
    void close(Sum& sum) const {
        sum.total += log_from_one(sum.product);
        sum.product = splat(1.0f);
    }
    Vector far(const Vector s, const Vector positive, Vector, Sum& sum) const {
        const Vector d = s - positive, e = exp_of_minus_abs(d);
        sum.total += softplus(d, e);
        return sigmoid(d, e);
    }
};

// g = (2σ(d))^κ; `shift` is the base-2 logarithm of the largest σ(d)^κ of the positive, so that no sum is below 1.
struct SigmoidPowerPairs : Pairs {
    static constexpr int kParams = 1;
    static constexpr bool kLogSum = true, kNeedsHighest = true;
    static constexpr int64_t kFew = 4;
    float kappa;

    explicit SigmoidPowerPairs(const Task& task) : kappa(task.params[0]) {}
    float reach() const { return kNear; }
    float slope_factor() const { return kappa; }
    float steepness() const { return std::fmax(1.0f, kappa); }  // σ bends on a scale of 1
    float shift(const float largest) const { return log2_sigmoid_power(largest, kappa); }
    float log_shift(const float shift) const { return shift * kLn2 + kappa * kLn2; }
    Vector near(const Vector s, const Vector positive, const Vector shift, Sum& sum) const {
        const Vector d = s - positive, square = d * d;
        const float scale = kappa * kLog2E;
        const Vector power = exp2(near_log_twice_sigmoid(d, square) * scale - (shift + scale * kLn2));
        sum.total += power;
        return power * near_one_minus_sigmoid(d, square);
    }
    Vector far(const Vector s, const Vector positive, const Vector shift, Sum& sum) const {
        return add_sigmoid_power(s - positive, kappa, shift, sum.total);
    }
};

// g = σ(κd), and h = σ(λ(1 + R - K)) of its sum R.
struct SigmoidRankPairs : Pairs {
    static constexpr int kParams = 3;
    static constexpr bool kNearTakesGone = true;
    static constexpr int64_t kFew = 12;
    float kappa, k, lambda;

    explicit SigmoidRankPairs(const Task& task) : kappa(task.params[0]), k(task.params[1]), lambda(task.params[2]) {}
    float reach() const { return 60.0f / kappa; }
    float slope_factor() const { return kappa; }
    float steepness() const { return kappa; }
    float outer_slope(const float inner) const {
        const float e = std::exp(-std::fabs(lambda * (1.0f + inner - k)));
        return lambda * e / ((1.0f + e) * (1.0f + e));
    }
    Vector item(const Vector s, const float centre) const { return exp_of_item(s, centre, kappa); }
    float positive(const float p, const float centre) const { return std::exp(kappa * (centre - p)); }
    Vector near(const Vector item, const Vector positive, Vector, Sum& sum) const {
        const Vector e = item * positive, rest = reciprocal(1.0f + e), sigmoid = e * rest;
        sum.total += sigmoid;
        return sigmoid * rest;
    }
    Vector far(const Vector s, const Vector positive, Vector, Sum& sum) const {
        const Vector d = (s - positive) * kappa, e = exp_of_minus_abs(d), rest = 1.0f / (1.0f + e);
        sum.total += (d < Vector{} ? e : splat(1.0f)) * rest;
        return e * rest * rest;
    }
};

// The kinds: the name in Python, and the functor.
#define TALOS_KINDS(X)                             \
    X("exp", Exp)                                  \
    X("sigmoid-power", SigmoidPower)               \
    X("hinge", Hinge)                              \
    X("partial-auc", PartialAUC)                   \
    X("softplus-pairs", SoftplusPairs)             \
    X("sigmoid-power-pairs", SigmoidPowerPairs)    \
    X("sigmoid-rank-pairs", SigmoidRankPairs)

// Kinds are numbered from 1; 0 stands for no φ at all.
enum Kind : int64_t {
    kNothing,
#define TALOS_KIND(name, functor) k##functor,
    TALOS_KINDS(TALOS_KIND)
#undef TALOS_KIND
    kKinds
};

// What functors declare, by kind.
struct Traits {
    int params, learnt, sums;
    bool needs_highest, pairs;
};

constexpr Traits kTraits[kKinds] = {
    {},
#define TALOS_KIND(name, functor) {functor::kParams, functor::kLearnt, functor::kSums, functor::kNeedsHighest, functor::kPairs},
    TALOS_KINDS(TALOS_KIND)
#undef TALOS_KIND
};

// Calls function(functor) with the functor of the task, if it is one of pairs or one of φ alone.
template <bool kPairs, class Function>
void with_functor(const Task& task, const Function& function) {
    switch (task.kind) {
#define TALOS_KIND(name, functor)                                              \
    case k##functor:                                                           \
        if constexpr (functor::kPairs == kPairs) function(functor(task));      \
        break;
        TALOS_KINDS(TALOS_KIND)
#undef TALOS_KIND
        default: break;
    }
}

}  // namespace talos::TALOS_LEVEL
