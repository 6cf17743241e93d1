// The loss-specific part of the core: one functor per kind, with φ and its slope.
//
// A functor is called with the scores s and thresholds β of as many users as a vector has lanes. It adds φ / e^{log_shift}
// to its first sum; the shift keeps the sum within range. Sums for learnt scalars follow. It returns
// ∂φ/∂s / (e^{log_shift} · slope_factor). Scores at or below kGone mark excluded items: φ and the slope must be exactly 0
// there.
#pragma once

#include <cmath>

#include "sweep.h"
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

// φ = e^{κs}, as e^{κ(s - highest)}.
struct Exp {
    static constexpr int kSums = 1;
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

// φ = σ(ω(s - β))^κ for any argument; `shift` is the base-2 logarithm of the largest φ.
struct SigmoidPower {
    static constexpr int kSums = 1;
    static constexpr bool kLogSum = true, kNeedsHighest = true;
    float kappa, omega;

    explicit SigmoidPower(const Task& task) : kappa(task.params[0]), omega(task.params[1]) {}
    float slope_factor() const { return kappa * omega; }
    float shift(const float highest, const float beta) const {
        const float x = omega * (highest - beta);
        return kappa * kLog2E * (std::fmin(x, 0.0f) - std::log1p(std::exp(-std::fabs(x))));
    }
    float log_shift(const float shift) const { return shift * kLn2; }
    Vector operator()(const Vector s, const Vector beta, const Vector shift, Vector (&sums)[1]) const {
        const Vector x = (s - beta) * omega, zero{};
        const Vector e = exp2((x < zero ? x : -x) * kLog2E);  // e^{-|x|}
        const Vector log_sigmoid = (x < zero ? x : zero) - log_of_one_and(e);
        const Vector phi = exp2(log_sigmoid * (kappa * kLog2E) - shift);
        sums[0] += phi;
        return phi * (x < zero ? splat(1.0f) : e) / (1.0f + e);
    }
};

// The same for |ω(s - β)| ≤ kNear, which holds for cosines: σ and log σ are short polynomials. φ is taken relative to
// σ(0)^κ, so that the exponent is small, and hence precise, around the threshold.
struct SigmoidPowerNear {
    static constexpr int kSums = 1;
    static constexpr bool kLogSum = true, kNeedsHighest = false;
    static constexpr float kNear = 2.04f;
    static constexpr float kMaxPower = 55.0f;  // e^{-1.46·κ} and e^{0.6·κ} are within float's range
    // log cosh(x/2)/x² and tanh(x/2)/2x, both in x² on [0, 4.2].
    static constexpr float kLogCosh[] = {0.125f,          -0.00520830601f, 0.00034711507f, -2.61904715e-05f,
                                         2.01705825e-06f, -1.33028422e-07f, 5.03809261e-09f};
    static constexpr float kHalfTanh[] = {0.249999985f,    -0.0208329409f,  0.00208179699f, -0.000208507976f,
                                          1.96543406e-05f, -1.47653361e-06f, 6.01869417e-08f};
    float kappa, omega;

    explicit SigmoidPowerNear(const Task& task) : kappa(task.params[0]), omega(task.params[1]) {}
    float slope_factor() const { return kappa * omega; }
    float shift(float, float) const { return 0.0f; }
    float log_shift(float) const { return -kappa * kLn2; }
    Vector operator()(const Vector s, const Vector beta, Vector, Vector (&sums)[1]) const {
        const Vector x = s <= kGone ? Vector{} : (s - beta) * omega, square = x * x;
        const Vector relative = 0.5f * x - square * polynomial(kLogCosh, square);
        const Vector power = exp2_within(relative * (kappa * kLog2E));
        const Vector phi = s <= kGone ? Vector{} : power;
        sums[0] += phi;
        return phi * (0.5f - x * polynomial(kHalfTanh, square));
    }
};

// φ = (1 + s - β)+.
struct Hinge {
    static constexpr int kSums = 1;
    static constexpr bool kLogSum = false, kNeedsHighest = false;

    explicit Hinge(const Task&) {}
    float slope_factor() const { return 1.0f; }
    float shift(float, float) const { return 0.0f; }
    float log_shift(float) const { return 0.0f; }
    Vector operator()(const Vector s, const Vector beta, Vector, Vector (&sums)[1]) const {
        const Vector x = 1.0f + s - beta, zero{};
        sums[0] += x < zero ? zero : x;  // a NaN stays one
        return x > zero ? splat(1.0f) : zero;
    }
};

// φ = log(1 + e^{κx})/κβ with x = (q - b)² + 2(1 + γ)q - s_n, q = σ(s). Further sums: those of u and qu with u = σ(κx)/β,
// from which the derivatives in b, γ and s_n are computed.
struct PartialAUC {
    static constexpr int kSums = 3;
    static constexpr bool kLogSum = false, kNeedsHighest = false;
    float b, gamma, s_n, fraction, kappa;

    explicit PartialAUC(const Task& task)
        : b(task.params[0]), gamma(task.params[1]), s_n(task.params[2]), fraction(task.params[3]), kappa(task.params[4]) {}
    float slope_factor() const { return 1.0f; }
    float shift(float, float) const { return 0.0f; }
    float log_shift(float) const { return 0.0f; }
    Vector operator()(const Vector s, Vector, Vector, Vector (&sums)[3]) const {
        const Vector zero{};
        const Vector q = sigmoid(s, exp2((s < zero ? s : -s) * kLog2E));
        const Vector x = kappa * ((q - b) * (q - b) + (2 * (1 + gamma)) * q - s_n);
        const Vector e = exp2((x < zero ? x : -x) * kLog2E);
        const Vector phi = ((x < zero ? zero : x) + log_of_one_and(e)) * (1 / (kappa * fraction));
        const Vector u = s <= kGone ? zero : sigmoid(x, e) * (1 / fraction);
        sums[0] += s <= kGone ? zero : phi;
        sums[1] += u;
        sums[2] += q * u;
        return u * 2.0f * (q - b + (1 + gamma)) * q * (1.0f - q);
    }

    // σ(x) from e^{-|x|}.
    static Vector sigmoid(const Vector x, const Vector e) { return (x < Vector{} ? e : splat(1.0f)) / (1.0f + e); }
};

// Pairs of a positive and a negative: one class per kind, with g and its slope in d = s_j - s_i.
//
// `Near` is for differences within `reach()`, and for excluded items only if kNearTakesGone; `Far` is for all. Each has
//   item(s, centre)      what is kept of a vector of the items' scores
//   positive(p, centre)  what is kept of a positive's score; the centre lies between the positives' scores
//   operator()           adds g / e^{log_shift} to its sum and returns g' / (e^{log_shift} · slope_factor)
//   close(sum)           called after every kTogether vectors of items: a sum may collect that many before it adds them up
// g and the slope of an excluded item are exactly 0. The fourth derivatives of g and g' are
// at most steepness()⁴ times g and g', or what g and g' are nearby. For users with more than kFew positives it pays to go by way
// of nodes (nodes.h).
constexpr int kTogether = 4;

// What sums are collected in: only `total`, unless a functor needs more.
struct PairSum {
    Vector total{};
};

// g = log(1 + e^d). Near, e^d is the product of one exponential per item and one per positive, and there is one logarithm for
// the product of kTogether factors 1 + e^d; their rounding makes an absolute error of 1e-7 in g.
struct SoftplusPairs {
    static constexpr bool kLogSum = false, kMean = true, kOnePass = true, kNeedsHighest = false, kNearTakesGone = true;
    static constexpr int64_t kFew = 20;

    explicit SoftplusPairs(const Task&) {}
    float reach() const { return 20.0f; }  // (1 + e^20)^4 is within float's range
    float slope_factor() const { return 1.0f; }
    float steepness() const { return 1.0f; }
    float shift(float) const { return 0.0f; }
    float log_shift(float) const { return 0.0f; }
    float outer_slope(float) const { return 1.0f; }

    struct Near {
        struct Sum : PairSum {
            Vector product = splat(1.0f);
        };
        explicit Near(const SoftplusPairs&) {}
        Vector item(const Vector s, const float centre) const { return exp_of_item(s, centre, 1.0f); }
        float positive(const float p, const float centre) const { return std::exp(centre - p); }
        Vector operator()(const Vector item, const Vector positive, Vector, Sum& sum) const {
            const Vector e = item * positive, factor = 1.0f + e;
            sum.product *= factor;
            return e * reciprocal(factor);
        }
        void close(Sum& sum) const {
            sum.total += log_from_one(sum.product);
            sum.product = splat(1.0f);
        }
    };

    struct Far {
        typedef PairSum Sum;
        explicit Far(const SoftplusPairs&) {}
        Vector item(const Vector s, float) const { return s; }
        float positive(const float p, float) const { return p; }
        Vector operator()(const Vector s, const Vector positive, Vector, Sum& sum) const {
            const Vector d = s - positive, zero{};
            const Vector e = exp2((d < zero ? d : -d) * kLog2E);
            sum.total += (d < zero ? zero : d) + log_of_one_and(e);
            return (d < zero ? e : splat(1.0f)) / (1.0f + e);
        }
        void close(Sum&) const {}
    };

    // e^{κ(s - centre)}, and 0 for excluded items.
    static Vector exp_of_item(const Vector s, const float centre, const float kappa) {
        return s <= kGone ? Vector{} : exp2((s - centre) * (kappa * kLog2E));
    }

    // log y for y from 1 on, below infinity. NaN gives NaN.
    static Vector log_from_one(const Vector y) {
        Integers bits;
        std::memcpy(&bits, &y, sizeof bits);
        const Vector exponent = __builtin_convertvector((bits >> 23) - 127, Vector);
        bits = (bits & 0x7fffff) | 0x3f800000;
        Vector mantissa;
        std::memcpy(&mantissa, &bits, sizeof mantissa);
        return exponent * kLn2 + log_of_one_and(mantissa - 1.0f) + 0.0f * y;
    }
};

// g = (2σ(d))^κ; `shift` is the base-2 logarithm of the largest σ(d)^κ of the positive, so that no sum is below 1.
struct SigmoidPowerPairs {
    static constexpr bool kLogSum = true, kMean = false, kOnePass = false, kNeedsHighest = true, kNearTakesGone = false;
    static constexpr int64_t kFew = 4;
    float kappa;

    explicit SigmoidPowerPairs(const Task& task) : kappa(task.params[0]) {}
    float reach() const { return SigmoidPowerNear::kNear; }
    float slope_factor() const { return kappa; }
    float steepness() const { return std::fmax(1.0f, kappa); }  // σ bends on a scale of 1
    float shift(const float largest) const {
        return kappa * kLog2E * (std::fmin(largest, 0.0f) - std::log1p(std::exp(-std::fabs(largest))));
    }
    float log_shift(const float shift) const { return shift * kLn2 + kappa * kLn2; }
    float outer_slope(float) const { return 1.0f; }

    struct Near {
        typedef PairSum Sum;
        float scale;
        explicit Near(const SigmoidPowerPairs& pairs) : scale(pairs.kappa * kLog2E) {}
        Vector item(const Vector s, float) const { return s; }
        float positive(const float p, float) const { return p; }
        Vector operator()(const Vector s, const Vector positive, const Vector shift, Sum& sum) const {
            // As in SigmoidPowerNear: σ(d) = ½·e^{d/2}/cosh(d/2).
            const Vector d = s - positive, square = d * d;
            const Vector relative = 0.5f * d - square * polynomial(SigmoidPowerNear::kLogCosh, square);
            const Vector power = exp2(relative * scale - (shift + scale * kLn2));
            sum.total += power;
            return power * (0.5f - d * polynomial(SigmoidPowerNear::kHalfTanh, square));
        }
        void close(Sum&) const {}
    };

    struct Far {
        typedef PairSum Sum;
        float scale;
        explicit Far(const SigmoidPowerPairs& pairs) : scale(pairs.kappa * kLog2E) {}
        Vector item(const Vector s, float) const { return s; }
        float positive(const float p, float) const { return p; }
        Vector operator()(const Vector s, const Vector positive, const Vector shift, Sum& sum) const {
            const Vector d = s - positive, zero{};
            const Vector e = exp2((d < zero ? d : -d) * kLog2E);
            const Vector log_sigmoid = (d < zero ? d : zero) - log_of_one_and(e);
            const Vector power = exp2(log_sigmoid * scale - shift);
            sum.total += power;
            return power * (d < zero ? splat(1.0f) : e) / (1.0f + e);
        }
        void close(Sum&) const {}
    };
};

// g = σ(κd), and h = σ(λ(1 + R - K)) of its sum R.
struct SigmoidRankPairs {
    static constexpr bool kLogSum = false, kMean = false, kOnePass = false, kNeedsHighest = false, kNearTakesGone = true;
    static constexpr int64_t kFew = 12;
    float kappa, k, lambda;

    explicit SigmoidRankPairs(const Task& task) : kappa(task.params[0]), k(task.params[1]), lambda(task.params[2]) {}
    float reach() const { return 60.0f / kappa; }
    float slope_factor() const { return kappa; }
    float steepness() const { return kappa; }
    float shift(float) const { return 0.0f; }
    float log_shift(float) const { return 0.0f; }
    float outer_slope(const float inner) const {
        const float e = std::exp(-std::fabs(lambda * (1.0f + inner - k)));
        return lambda * e / ((1.0f + e) * (1.0f + e));
    }

    struct Near {
        typedef PairSum Sum;
        float kappa;
        explicit Near(const SigmoidRankPairs& pairs) : kappa(pairs.kappa) {}
        Vector item(const Vector s, const float centre) const { return SoftplusPairs::exp_of_item(s, centre, kappa); }
        float positive(const float p, const float centre) const { return std::exp(kappa * (centre - p)); }
        Vector operator()(const Vector item, const Vector positive, Vector, Sum& sum) const {
            const Vector e = item * positive, rest = reciprocal(1.0f + e), sigmoid = e * rest;
            sum.total += sigmoid;
            return sigmoid * rest;
        }
        void close(Sum&) const {}
    };

    struct Far {
        typedef PairSum Sum;
        float kappa;
        explicit Far(const SigmoidRankPairs& pairs) : kappa(pairs.kappa) {}
        Vector item(const Vector s, float) const { return s; }
        float positive(const float p, float) const { return p; }
        Vector operator()(const Vector s, const Vector positive, Vector, Sum& sum) const {
            const Vector d = (s - positive) * kappa, zero{};
            const Vector e = exp2((d < zero ? d : -d) * kLog2E), rest = 1.0f / (1.0f + e);
            sum.total += (d < zero ? e : splat(1.0f)) * rest;
            return e * rest * rest;
        }
        void close(Sum&) const {}
    };
};

}  // namespace talos::TALOS_LEVEL
