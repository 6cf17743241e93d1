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
    float kappa, omega;

    explicit SigmoidPowerNear(const Task& task) : kappa(task.params[0]), omega(task.params[1]) {}
    float slope_factor() const { return kappa * omega; }
    float shift(float, float) const { return 0.0f; }
    float log_shift(float) const { return -kappa * kLn2; }
    Vector operator()(const Vector s, const Vector beta, Vector, Vector (&sums)[1]) const {
        // log cosh(x/2)/x² and tanh(x/2)/2x, both in x² on [0, 4.2].
        constexpr float c[] = {0.125f,          -0.00520830601f, 0.00034711507f, -2.61904715e-05f,
                               2.01705825e-06f, -1.33028422e-07f, 5.03809261e-09f};
        constexpr float h[] = {0.249999985f,    -0.0208329409f,  0.00208179699f, -0.000208507976f,
                               1.96543406e-05f, -1.47653361e-06f, 6.01869417e-08f};
        const Vector x = s <= kGone ? Vector{} : (s - beta) * omega, square = x * x;
        const Vector relative = 0.5f * x - square * polynomial(c, square);
        const Vector power = exp2_within(relative * (kappa * kLog2E));
        const Vector phi = s <= kGone ? Vector{} : power;
        sums[0] += phi;
        return phi * (0.5f - x * polynomial(h, square));
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

}  // namespace talos::TALOS_LEVEL
