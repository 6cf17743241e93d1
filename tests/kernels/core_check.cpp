// Runs the core on many odd shapes with arrays of exactly the right size, for the sanitisers to watch, and
// compares the instruction sets with each other. Exits with 1 where they disagree.
//
//   core_check         all shapes
//   core_check small   all but the largest, with fewer excluded items, for emulators
//   core_check count   every function once per level, for count_instructions.c; prints "function level" lines
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "lists.h"
#include "samples.h"
#include "sets.h"
#include "sweep.h"

extern "C" {
int32_t talos_core_best_level();
const char* talos_core_level_name(int32_t level);
int64_t talos_core_workspace_bytes(int32_t level, const talos::Task* task);
void talos_core_sweep(int32_t level, const talos::Task* task);
void talos_core_unit_rows(int32_t level, const talos::Rows* task);
void talos_core_add_positives(int32_t level, const talos::Positives* task);
void talos_core_least_squares(int32_t level, const talos::LeastSquares* task);
int64_t talos_core_group_workspace_bytes(int32_t level, const talos::Groups* groups);
void talos_core_group_sweep(int32_t level, const talos::Groups* groups);
void talos_core_group_scores(int32_t level, const talos::Groups* groups);
void talos_core_pair_scores(int32_t level, const talos::Pairs* task);
void talos_core_adam_rows(int32_t level, const talos::AdamRows* task);
int64_t talos_core_smooth_places_workspace_bytes(int32_t level, const talos::Lists* task);
void talos_core_smooth_places(int32_t level, const talos::Lists* task);
int64_t talos_core_distinct_workspace_bytes(int64_t bound);
int64_t talos_core_distinct(const talos::Distinct* task);
int64_t talos_core_drawn_positives(const talos::DrawnPositives* task);
}

namespace {

std::vector<float> random_numbers(const int64_t count, const unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(engine);
    return values;
}

bool close(const std::vector<float>& a, const std::vector<float>& b, const float tolerance = 1e-4f) {
    float largest = 1e-6f, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(b[i]));
        apart = std::max(apart, std::fabs(a[i] - b[i]));
    }
    return apart <= tolerance * largest;
}

// A call of the core between two system calls, by which count_instructions.c knows what to count.
template <class Task>
void call(void (*const function)(int32_t, const Task*), const int level, const Task& task) {
    getppid();
    function(level, &task);
    getppid();
}

struct Result {
    std::vector<float> user_gradient, item_gradient, negative, kth, best;  // `negative` is R of each positive for pairs
};

// The same task once more for the sums and the K best scores alone; whether they are those of the whole.
bool sums_agree(const int level, talos::Task task, const Result& whole) {
    std::vector<float> negative(task.users), best(task.users * task.k);
    task.user_gradient = task.item_gradient = nullptr;
    task.coefficients = nullptr;
    task.negative = negative.data(), task.best = best.data();
    std::vector<float> inner(talos::is_pairwise(task.kind) ? whole.negative.size() : 0);
    task.inner = inner.data(), task.positive_coefficients = nullptr, task.positive_slopes = nullptr;
    talos_core_sweep(level, &task);
    for (int64_t u = 0; u < task.users; ++u)
        if (*std::min_element(best.begin() + u * task.k, best.begin() + (u + 1) * task.k) != whole.kth[u]) return false;
    if (talos::is_pairwise(task.kind)) return close(inner, whole.negative, 1e-6f);
    return task.kind == talos::kNothing || negative == whole.negative;
}

// Of user u, every (apart + u² mod 11)-th item is excluded.
Result run(const int level, const int kind, const int64_t users, const int64_t items, const int64_t dim,
           const int threads, const bool bfloat16 = false, const int64_t apart = 1) {
    const std::vector<float> user_vectors = random_numbers(users * dim, 1), rows = random_numbers(items * dim, 2);
    std::vector<float> unit(items * dim), lengths(items), coefficients(users, 1.0f), normalizer(users);
    const talos::Rows normalise{items, dim, threads, {}, rows.data(), unit.data(), lengths.data()};
    call(talos_core_unit_rows, level, normalise);

    std::vector<int64_t> start{0}, excluded;
    for (int64_t u = 0; u < users; ++u) {
        for (int64_t j = u % 3; j < items; j += apart + u * u % 11) excluded.push_back(j);
        start.push_back(static_cast<int64_t>(excluded.size()));
    }
    std::vector<float> excluded_scores(excluded.size()), slopes(excluded.size(), -0.5f);
    talos::Task task{};
    task.k = std::min<int64_t>(5, items);
    Result result{std::vector<float>(users * dim), std::vector<float>(items * dim), std::vector<float>(users),
                  std::vector<float>(users), std::vector<float>(users * task.k)};
    task.users = users, task.items = items, task.dim = dim;
    task.user_vectors = user_vectors.data(), task.item_vectors = unit.data();
    task.excluded_start = start.data(), task.excluded = excluded.data();
    task.coefficients = coefficients.data();
    task.kind = kind, task.scale = 1, task.bfloat16 = bfloat16;
    const float powers[] = {5, 1, 0, 0, 0}, partial[] = {0.3f, 0.1f, 0.4f, 0.5f, 5};
    std::copy_n(kind == talos::kPartialAUC ? partial : powers, 5, task.params);
    std::vector<float> moments(users * 2);
    task.moments = moments.data();
    task.kth_is_threshold = 1, task.threads = threads;
    // The positives of pairs are what is excluded.
    const bool pairs = talos::is_pairwise(kind);
    std::vector<float> factors(pairs ? excluded.size() : 0, 0.5f), positive_slopes(factors.size());
    if (pairs) {
        const float ranks[] = {10, 3, 0.5f, 0, 0};
        if (kind == talos::kSigmoidRankPairs) std::copy_n(ranks, 5, task.params);
        result.negative.assign(excluded.size(), 0.0f);
        task.positive_start = start.data(), task.positive_scores = excluded_scores.data();
        task.positive_coefficients = factors.data();
        task.inner = result.negative.data(), task.positive_slopes = positive_slopes.data();
    }
    task.negative = result.negative.data(), task.normalizer = normalizer.data();
    task.user_gradient = result.user_gradient.data(), task.item_gradient = result.item_gradient.data();
    task.kth = result.kth.data(), task.best = result.best.data();
    task.excluded_scores = excluded_scores.data();
    std::vector<float> workspace(talos_core_workspace_bytes(level, &task) / 4);
    task.workspace = workspace.data();
    call(talos_core_sweep, level, task);
    if (!sums_agree(level, task, result)) {
        std::printf("level %d: the sums alone differ, kind %d\n", level, kind);
        std::exit(1);
    }
    if (kind == talos::kNothing) return result;
    if (pairs) slopes = positive_slopes;

    const talos::Positives positives{users, items, dim, threads, {}, start.data(), excluded.data(), slopes.data(),
                                     user_vectors.data(), unit.data(), lengths.data(),
                                     result.user_gradient.data(), result.item_gradient.data()};
    call(talos_core_add_positives, level, positives);
    return result;
}

struct Sampled {
    std::vector<float> user_gradient, item_gradient, scores, positive_scores, parameter;
};

// A step with samples that groups of three users share: distinct rows, scores, sweep, positives and Adam.
Sampled sampled(const int level, const int kind, const int64_t users, const int64_t items, const int64_t dim, const int threads,
                const bool bfloat16 = false) {
    const int64_t sample = 1 + items / 3, groups = (users + 2) / 3;
    std::vector<int64_t> first, start{0}, items_of, wanted;
    for (int64_t g = 0; g <= groups; ++g) first.push_back(std::min(3 * g, users));
    for (int64_t u = 0; u < users; ++u) {
        for (int64_t j = u % 3; u % 4 != 3 && j < items; j += 1 + u * u % 11) items_of.push_back(j);
        start.push_back(static_cast<int64_t>(items_of.size()));
    }
    wanted = items_of;
    for (int64_t j = 0; j < groups * sample; ++j) wanted.push_back(j * j % items);
    const int64_t needed = static_cast<int64_t>(wanted.size()), positives = static_cast<int64_t>(items_of.size());
    std::vector<int64_t> rows(std::min(needed, items)), places(needed);
    std::vector<uint64_t> bits(talos_core_distinct_workspace_bytes(items) / 8);
    const talos::Distinct distinct{needed, items, wanted.data(), bits.data(), rows.data(), places.data()};
    const int64_t count = talos_core_distinct(&distinct);
    rows.resize(count);

    const std::vector<float> table = random_numbers(items * dim, 2), vectors = random_numbers(users * dim, 1);
    std::vector<float> some(count * dim);
    for (int64_t i = 0; i < count; ++i) std::copy_n(table.data() + rows[i] * dim, dim, some.data() + i * dim);
    const std::vector<int64_t> own(places.begin(), places.begin() + positives), drawn(places.begin() + positives, places.end());
    std::vector<int64_t> gone_start(users + 1), gone;
    talos::DrawnPositives look{groups, sample, count, first.data(), drawn.data(), start.data(), own.data(), 0,
                               gone_start.data(), gone.data()};
    gone.resize(talos_core_drawn_positives(&look));
    look.room = static_cast<int64_t>(gone.size()), look.found = gone.data();
    talos_core_drawn_positives(&look);

    Sampled result{std::vector<float>(users * dim), std::vector<float>(count * dim), std::vector<float>(users * sample),
                   std::vector<float>(positives), table};
    const talos::Pairs pairs{users, dim, threads, {}, start.data(), own.data(), vectors.data(), some.data(),
                             result.positive_scores.data()};
    talos_core_pair_scores(level, &pairs);
    std::vector<float> ones(std::max(users, positives), 0.5f), negative(users), normalizer(users), moments(2 * users);
    std::vector<float> inner(positives), slopes(positives, -0.5f);
    talos::Groups all{};
    talos::Task& task = all.task;
    task.users = users, task.items = count, task.dim = dim, task.threads = threads;
    task.user_vectors = vectors.data(), task.item_vectors = some.data();
    task.excluded_start = gone_start.data(), task.excluded = gone.data(), task.coefficients = ones.data();
    const float powers[] = {5, 1, 0, 0, 0}, partial[] = {0.3f, 0.1f, 0.4f, 0.5f, 5}, ranks[] = {10, 3, 0.5f, 0, 0};
    std::copy_n(kind == talos::kPartialAUC ? partial : kind == talos::kSigmoidRankPairs ? ranks : powers, 5, task.params);
    task.kind = kind, task.scale = 1, task.bfloat16 = bfloat16;
    task.positive_start = start.data(), task.positive_scores = result.positive_scores.data();
    task.positive_coefficients = ones.data(), task.inner = inner.data(), task.positive_slopes = slopes.data();
    task.negative = negative.data(), task.normalizer = normalizer.data(), task.moments = moments.data();
    task.user_gradient = result.user_gradient.data(), task.item_gradient = result.item_gradient.data();
    all.groups = groups, all.sample = sample, all.first = first.data(), all.drawn = drawn.data();
    all.scores = result.scores.data();
    talos_core_group_scores(level, &all);
    std::vector<float> workspace(talos_core_group_workspace_bytes(level, &all) / 4);
    task.workspace = workspace.data();
    talos_core_group_sweep(level, &all);

    std::vector<float> mean(items * dim), square(items * dim);
    const talos::AdamRows adam{count, dim, threads, {}, rows.data(), result.item_gradient.data(), result.parameter.data(),
                               mean.data(), square.data(), 0.1f, 0.999f, 0.001f, 1e-3f, 0.01f, 1.0f, 0.03f};
    talos_core_adam_rows(level, &adam);
    return result;
}

bool samples_agree(const Sampled& a, const Sampled& b, const float tolerance = 1e-4f) {
    return close(a.user_gradient, b.user_gradient, tolerance) && close(a.item_gradient, b.item_gradient, tolerance) &&
           close(a.scores, b.scores) && close(a.positive_scores, b.positive_scores) && close(a.parameter, b.parameter, 0.1f);
}

// Half a sweep of least squares for rows of every length, from none to all columns.
std::vector<float> solved(const int level, const int64_t rows, const int64_t columns, const int64_t dim, const int threads) {
    std::vector<float> fixed(columns * dim), gram(dim * dim), solution(rows * dim, 0.1f);
    for (size_t i = 0; i < fixed.size(); ++i) fixed[i] = std::sin(0.37f * static_cast<float>(i % 1009 * (i % 1009)));
    for (int64_t a = 0; a < dim; ++a)
        for (int64_t b = 0; b < dim; ++b) {
            gram[a * dim + b] = a == b ? 2.0f : 0.0f;
            for (int64_t j = 0; j < columns; ++j) gram[a * dim + b] += fixed[j * dim + a] * fixed[j * dim + b];
        }
    std::vector<int64_t> start{0}, items_of;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = r % 3; r % 4 != 3 && j < columns; j += 1 + r * r % 11) items_of.push_back(j);
        start.push_back(static_cast<int64_t>(items_of.size()));
    }
    const talos::LeastSquares task{rows, dim, threads, 3, {}, start.data(), items_of.data(), nullptr, fixed.data(),
                                   gram.data(), 4.0f, solution.data()};
    call(talos_core_least_squares, level, task);
    return solution;
}

// Slopes and values of SmoothI@K; users have from none to all of the items.
std::vector<float> placed(const int level, const int64_t users, const int64_t items, const int threads) {
    std::vector<float> scores = random_numbers(users * items, 7);
    std::vector<int64_t> start{0}, items_of;
    for (int64_t u = 0; u < users; ++u) {
        for (int64_t j = u % 3; u % 4 != 3 && j < items; j += 1 + u * u % 11) items_of.push_back(j);
        start.push_back(static_cast<int64_t>(items_of.size()));
    }
    const std::vector<float> coefficients(items_of.size(), 0.5f);
    std::vector<float> values(items_of.size());
    talos::Lists task{users, items, 5, threads, {}, start.data(), items_of.data(), coefficients.data(), 2.0f, 0.1f,
                      nullptr, scores.data(), values.data()};
    std::vector<float> workspace(talos_core_smooth_places_workspace_bytes(level, &task) / 4);
    task.workspace = workspace.data();
    call(talos_core_smooth_places, level, task);
    scores.insert(scores.end(), values.begin(), values.end());
    return scores;
}

// Calls every function at every level, and prints which, in the order of the calls.
void count() {
    for (int level = 0; level <= talos_core_best_level(); ++level) {
        const char* const name = talos_core_level_name(level);
        for (int kind = talos::kExp; kind <= talos::kSigmoidRankPairs; ++kind) {
            run(level, kind, 64, 1031, 64, 1, false, 100);
            std::printf("unit_rows %s\nsweep-%d %s\nadd_positives %s\n", name, kind, name, name);
        }
        solved(level, 64, 1031, 64, 1);
        std::printf("least_squares %s\n", name);
        placed(level, 64, 1031, 1);
        std::printf("smooth_places %s\n", name);
    }
}

}  // namespace

int main(const int argc, const char* const* const argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "count") return count(), 0;
    std::vector<std::array<int64_t, 3>> shapes{{1, 1, 1}, {1, 7, 8}, {2, 3, 9}, {33, 130, 17}, {65, 1031, 64}};
    if (mode != "small") shapes.push_back({300, 2111, 33});
    const auto apart = [&mode](const int64_t items) { return mode == "small" && items > 1000 ? 50 : 1; };
    int runs = 0;
    for (const auto& [users, items, dim] : shapes)
        for (int kind = talos::kNothing; kind <= talos::kSigmoidRankPairs; ++kind)
            for (int threads = 1; threads <= 3; ++threads) {
                const Result plain = run(0, kind, users, items, dim, 1, false, apart(items));
                const int best = talos_core_best_level();
                const Result first = run(best, kind, users, items, dim, 1, true, apart(items));
                const Result again = run(best, kind, users, items, dim, threads, true, apart(items));
                // the last bit of a sum, which depends on the threads, may decide how a number is rounded
                if (!close(again.user_gradient, first.user_gradient) ||
                    !close(again.item_gradient, first.item_gradient, 1e-2f)) {
                    std::printf("bfloat16 on %d threads differs: kind %d\n", threads, kind);
                    return 1;
                }
                for (int level = 0; level <= talos_core_best_level(); ++level, ++runs) {
                    const Result one = run(level, kind, users, items, dim, threads, false, apart(items));
                    if (close(one.user_gradient, plain.user_gradient) && close(one.negative, plain.negative) &&
                        close(one.item_gradient, plain.item_gradient) && close(one.kth, plain.kth))
                        continue;
                    std::printf("level %d differs: kind %d, %lld users, %lld items, dimension %lld\n", level, kind,
                                static_cast<long long>(users), static_cast<long long>(items),
                                static_cast<long long>(dim));
                    return 1;
                }
            }
    for (const auto& [rows, columns, dim] : shapes)
        for (int threads = 1; threads <= 3; ++threads)
            for (int level = 0; level <= talos_core_best_level(); ++level, ++runs)
                if (!close(solved(level, rows, columns, dim, threads), solved(0, rows, columns, dim, 1))) {
                    std::printf("level %d differs: least squares, dimension %lld\n", level, static_cast<long long>(dim));
                    return 1;
                }
    auto lists = shapes;
    lists.push_back({6, 4000, 0});  // long enough for nodes
    for (const auto& [users, items, dim] : lists)
        for (int threads = 1; threads <= 3; ++threads)
            for (int level = 0; level <= talos_core_best_level(); ++level, ++runs)
                if (!close(placed(level, users, items, threads), placed(0, users, items, 1))) {
                    std::printf("level %d differs: smooth places, %lld items\n", level, static_cast<long long>(items));
                    return 1;
                }
    for (const auto& [users, items, dim] : shapes)
        for (int kind = talos::kExp; kind <= talos::kSigmoidRankPairs; ++kind)
            for (int level = 0; level <= talos_core_best_level(); ++level, ++runs) {
                const Sampled one = sampled(level, kind, users, items, dim, 1), two = sampled(level, kind, users, items, dim, 2);
                sampled(level, kind, users, items, dim, 3, true);
                const bool same = one.item_gradient == two.item_gradient && one.user_gradient == two.user_gradient;
                if (same && samples_agree(one, sampled(0, kind, users, items, dim, 1))) continue;
                std::printf("level %d differs: samples, kind %d, dimension %lld\n", level, kind, static_cast<long long>(dim));
                return 1;
            }
    std::printf("%d runs\n", runs);
    return 0;
}
