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

#include "losses.h"
#include "task.h"

extern "C" {
int32_t talos_core_best_level();
const char* talos_core_level_name(int32_t level);
int64_t talos_core_workspace_bytes(int32_t level, int32_t operation, const talos::Task* task);
int32_t talos_core_run(int32_t level, int32_t operation, const talos::Task* tasks, int64_t count, int64_t threads);
}

namespace {

using talos::Task;
using talos::plain::kTraits;
constexpr int kKinds = talos::plain::kKinds;

// The operations by their numbers.
enum Operations {
#define NUMBER(name) k_##name,
    TALOS_OPERATIONS(NUMBER)
#undef NUMBER
};

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

// An operation for every task, on so many threads at once, with workspaces of exactly the right size; between two system calls, by
// which count_instructions.c knows what to count.
void call(const int operation, const int level, std::vector<Task> tasks, const int64_t threads) {
    const int64_t at_once = std::min<int64_t>(threads, static_cast<int64_t>(tasks.size()));
    int64_t floats = 0;
    for (const Task& task : tasks) floats = std::max(floats, talos_core_workspace_bytes(level, operation, &task) / 4);
    std::vector<std::vector<float>> workspaces(at_once, std::vector<float>(floats));
    for (size_t i = 0; i < tasks.size(); ++i) tasks[i].workspace = workspaces[i % at_once].data();
    getppid();
    const int failed = talos_core_run(level, operation, tasks.data(), static_cast<int64_t>(tasks.size()), at_once);
    getppid();
    if (failed) std::exit(1);
}

void call(const int operation, const int level, const Task& task) { call(operation, level, std::vector<Task>{task}, 1); }

// Parameters that suit a kind of φ.
const float* params_of(const int kind) {
    static const float powers[] = {5, 1}, partial[] = {0.3f, 0.1f, 0.4f, 0.5f, 5}, ranks[] = {10, 3, 0.5f};
    return kTraits[kind].params == 5 ? partial : kTraits[kind].params == 3 ? ranks : powers;
}

Task task_of(const int64_t rows, const int64_t items, const int64_t dim, const int threads) {
    Task task{};
    task.rows = rows, task.items = items, task.dim = dim, task.threads = threads;
    return task;
}

struct Result {
    std::vector<float> user_gradient, item_gradient, sums, kth, best;
};

// The same task once more for the sums and the K best scores alone; whether they are those of the whole.
bool sums_agree(const int level, Task task, const Result& whole) {
    std::vector<float> sums(whole.sums.size()), best(task.rows * task.k);
    task.gradients = 0, task.user_gradient = task.item_gradient = nullptr, task.weights = nullptr, task.positive_slopes = nullptr;
    task.sums = sums.data(), task.best = best.data();
    call(k_sweep, level, task);
    for (int64_t u = 0; u < task.rows; ++u)
        if (*std::min_element(best.begin() + u * task.k, best.begin() + (u + 1) * task.k) != whole.kth[u]) return false;
    if (kTraits[task.kind].pairs) return close(sums, whole.sums, 1e-6f);
    return task.kind == 0 || sums == whole.sums;
}

// Of user u, every (apart + u² mod 11)-th item is excluded; for pairs, these are the positives. With `ties` all scores are equal.
Result run(const int level, const int kind, const int64_t users, const int64_t items, const int64_t dim,
           const int threads, const bool bfloat16 = false, const int64_t apart = 1, const bool ties = false) {
    const std::vector<float> vectors = random_numbers(users * dim, 1);
    const std::vector<float> rows = ties ? std::vector<float>(items * dim, 1.0f) : random_numbers(items * dim, 2);
    std::vector<float> unit(items * dim), lengths(items), normalizer(users), parameters(kTraits[kind].params);
    Task task = task_of(users, items, dim, threads);
    task.table = rows.data(), task.out = unit.data(), task.lengths = lengths.data();
    call(k_unit_rows, level, task);

    std::vector<int64_t> start{0}, excluded;
    for (int64_t u = 0; u < users; ++u) {
        for (int64_t j = u % 3; j < items; j += apart + u * u % 11) excluded.push_back(j);
        start.push_back(static_cast<int64_t>(excluded.size()));
    }
    const bool pairs = kTraits[kind].pairs;
    std::vector<float> excluded_scores(excluded.size()), slopes(excluded.size(), -0.5f);
    const std::vector<float> weights(pairs ? excluded.size() : users, pairs ? 0.5f : 1.0f);
    task.k = std::min<int64_t>(5, items);
    Result result{std::vector<float>(users * dim), std::vector<float>(items * dim), std::vector<float>(weights.size()),
                  std::vector<float>(users), std::vector<float>(users * task.k)};
    task.users = vectors.data(), task.table = unit.data();
    task.excluded_start = start.data(), task.excluded = excluded.data(), task.weights = weights.data();
    task.kind = kind, task.params = params_of(kind), task.scale = 1, task.bfloat16 = bfloat16, task.gradients = 1;
    task.kth_is_threshold = 1;
    task.indptr = start.data(), task.indices = excluded.data();
    task.positive_scores = excluded_scores.data(), task.positive_slopes = slopes.data();
    task.sums = result.sums.data(), task.normalizer = normalizer.data(), task.parameter_gradient = parameters.data();
    task.user_gradient = result.user_gradient.data(), task.item_gradient = result.item_gradient.data();
    task.kth = result.kth.data(), task.best = result.best.data(), task.excluded_scores = excluded_scores.data();
    call(k_sweep, level, task);
    if (!sums_agree(level, task, result)) {
        std::printf("level %d: the sums alone differ, kind %d\n", level, kind);
        std::exit(1);
    }
    if (kind == 0) return result;
    task.slopes = slopes.data();
    call(k_add_positives, level, task);
    return result;
}

struct Sampled {
    std::vector<float> user_gradient, item_gradient, positive_scores, parameter;
};

// A step with samples that three users each have in common: one sweep for each, which threads divide, and the sum of their
// gradients; scores of positives; Adam. A user's positives are items like any other here.
Sampled sampled(const int level, const int kind, const int64_t users, const int64_t items, const int64_t dim, const int threads,
                const bool bfloat16 = false) {
    const int64_t n = 1 + items / 3, samples = (users + 2) / 3;
    std::vector<int64_t> start{0}, own, drawn(samples * n), rows(items), pairs(samples * n + 1);
    for (int64_t u = 0; u < users; ++u) {
        for (int64_t j = u % 3; u % 4 != 3 && j < items; j += 1 + u * u % 11) own.push_back(j);
        start.push_back(static_cast<int64_t>(own.size()));
    }
    for (int64_t j = 0; j < samples * n; ++j) drawn[j] = j * j % items, pairs[j + 1] = j + 1;
    for (int64_t j = 0; j < items; ++j) rows[j] = j;
    const std::vector<float> table = random_numbers(items * dim, 2), vectors = random_numbers(users * dim, 1);
    std::vector<float> blocks(samples * n * dim), gradients(samples * n * dim);
    for (int64_t j = 0; j < samples * n; ++j) std::copy_n(table.data() + drawn[j] * dim, dim, blocks.data() + j * dim);
    const size_t positives = own.size(), reduced = kTraits[kind].pairs ? positives : users;
    Sampled result{std::vector<float>(users * dim), std::vector<float>(items * dim), std::vector<float>(positives), table};
    Task task = task_of(users, items, dim, threads);
    task.users = vectors.data(), task.table = table.data(), task.out = result.positive_scores.data();
    task.indptr = start.data(), task.indices = own.data();
    call(k_pair_scores, level, task);

    std::vector<float> weights(reduced, 0.5f), sums(reduced), normalizer(users), slopes(positives), parameters(samples * 5);
    task.weights = weights.data(), task.positive_scores = result.positive_scores.data(), task.positive_slopes = slopes.data();
    task.kind = kind, task.params = params_of(kind), task.scale = 1, task.bfloat16 = bfloat16, task.gradients = 1;
    task.sums = sums.data(), task.normalizer = normalizer.data(), task.user_gradient = result.user_gradient.data();
    std::vector<Task> tasks(samples, task);
    for (int64_t g = 0; g < samples; ++g) {
        Task& one = tasks[g];
        one.rows = std::min<int64_t>(3, users - 3 * g), one.items = n, one.threads = 1;
        one.users += 3 * g * dim, one.user_gradient += 3 * g * dim, one.parameter_gradient = parameters.data() + 5 * g;
        one.table = blocks.data() + g * n * dim, one.item_gradient = gradients.data() + g * n * dim;
        if (kTraits[kind].pairs) one.indptr += 3 * g;
        else one.weights += 3 * g, one.sums += 3 * g, one.normalizer += 3 * g;
    }
    call(k_sweep, level, tasks, threads);

    const std::vector<float> ones(samples * n, 1.0f);
    Task sum = task_of(samples * n, items, dim, threads);
    sum.users = gradients.data(), sum.indptr = pairs.data(), sum.indices = drawn.data(), sum.slopes = ones.data();
    sum.item_gradient = result.item_gradient.data();
    call(k_add_positives, level, sum);

    const float constants[] = {0.1f, 0.999f, 0.001f, 1e-3f, 0.01f, 1.0f, 0.03f};
    std::vector<float> mean(items * dim), square(items * dim);
    Task adam = task_of(items, 0, dim, threads);
    adam.indices = rows.data(), adam.gradient = result.item_gradient.data(), adam.params = constants;
    adam.out = result.parameter.data(), adam.mean = mean.data(), adam.square = square.data();
    call(k_adam_rows, level, adam);
    return result;
}

bool samples_agree(const Sampled& a, const Sampled& b, const float tolerance = 1e-4f) {
    return close(a.user_gradient, b.user_gradient, tolerance) && close(a.item_gradient, b.item_gradient, tolerance) &&
           close(a.positive_scores, b.positive_scores) && close(a.parameter, b.parameter, 0.1f);
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
    Task task = task_of(rows, columns, dim, threads);
    task.steps = 3, task.scale = 4, task.indptr = start.data(), task.indices = items_of.data();
    task.table = fixed.data(), task.gram = gram.data(), task.out = solution.data();
    call(k_least_squares, level, task);
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
    const float params[] = {2.0f, 0.1f};
    Task task = task_of(users, items, 0, threads);
    task.k = 5, task.params = params, task.indptr = start.data(), task.indices = items_of.data();
    task.weights = coefficients.data(), task.out = scores.data(), task.sums = values.data();
    call(k_smooth_places, level, task);
    scores.insert(scores.end(), values.begin(), values.end());
    return scores;
}

// Calls every function at every level, and prints which, in the order of the calls.
void count() {
    for (int level = 0; level <= talos_core_best_level(); ++level) {
        const char* const name = talos_core_level_name(level);
        for (int kind = 1; kind < kKinds; ++kind) {
            run(level, kind, 64, 1031, 64, 1, false, 100);
            std::printf("unit_rows %s\nsweep-%d %s\nsums-%d %s\nadd_positives %s\n", name, kind, name, kind, name, name);
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
        for (int kind = 0; kind < kKinds; ++kind)
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
                    if (close(one.user_gradient, plain.user_gradient) && close(one.sums, plain.sums) &&
                        close(one.item_gradient, plain.item_gradient) && close(one.kth, plain.kth))
                        continue;
                    std::printf("level %d differs: kind %d, %lld users, %lld items, dimension %lld\n", level, kind,
                                static_cast<long long>(users), static_cast<long long>(items),
                                static_cast<long long>(dim));
                    return 1;
                }
            }
    for (int level = 0; level <= talos_core_best_level(); ++level, ++runs)  // more candidates than there is room for
        for (const float kth : run(level, 0, 3, 1031, 4, 1 + level, false, 1, true).kth)
            if (!std::isfinite(kth)) return std::printf("level %d: ties\n", level), 1;
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
        for (int kind = 1; kind < kKinds; ++kind)
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
