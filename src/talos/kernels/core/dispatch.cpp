// The C interface: lists what the core has, and calls the version of an operation for an instruction set.
#include <cstddef>
#include <type_traits>

#include "losses.h"
#include "task.h"
#include "team.h"

#if defined(TALOS_X86) && defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace talos {

// The operations of a level, in the order of their numbers.
#define TALOS_ADDRESS(name) &name,
#define TALOS_TABLE(level, name) namespace level { constexpr const Operation* kOperations[] = {TALOS_OPERATIONS(TALOS_ADDRESS)}; }
#define TALOS_ROW(level, name) {name, level::kOperations},

#if defined(TALOS_X86)
#define TALOS_LEVELS(X) X(plain, "plain") X(avx2, "AVX2") X(avx512, "AVX-512")
#elif defined(TALOS_ARM64)
#define TALOS_LEVELS(X) X(plain, "plain") X(neon, "NEON")
#else
#define TALOS_LEVELS(X) X(plain, "plain")
#endif
TALOS_LEVELS(TALOS_TABLE)

namespace {

struct Level {
    const char* name;
    const Operation* const* operations;
};

constexpr Level kLevels[] = {TALOS_LEVELS(TALOS_ROW)};

bool multiplies_bfloat16() {
#ifdef TALOS_BFLOAT16
    static const bool has = __builtin_cpu_supports("avx512bf16");
    return has;
#else
    return false;
#endif
}

const Operation& operation_of(const int32_t level, const int32_t operation, [[maybe_unused]] const Task& task) {
    const Operation& found = *kLevels[level].operations[operation];
#ifdef TALOS_BFLOAT16
    if (&found == &avx512::sweep && task.bfloat16 && multiplies_bfloat16()) return avx512bf16::sweep;
#endif
    return found;
}

// Something that Python has to know.
struct Fact {
    const char *topic, *name;
    int32_t values[5];
};

// As in Python's module struct.
template <class Type>
constexpr int32_t letter_of() {
    return std::is_pointer_v<Type> ? 'P' : std::is_integral_v<Type> ? 'q' : 'f';
}

#define TALOS_FIELD_FACT(type, name) {"field", #name, {letter_of<type>(), static_cast<int32_t>(offsetof(Task, name))}},
#define TALOS_OPERATION_FACT(name) {"operation", #name, {}},
#define TALOS_KIND_FACT(name, functor)                                                                                      \
    {"kind", name, {plain::functor::kParams, plain::functor::kFree, plain::functor::kLearnt, plain::functor::kLogSum,       \
                    plain::functor::kPairs}},
constexpr Fact kFacts[] = {
    TALOS_FIELDS(TALOS_FIELD_FACT)
    TALOS_OPERATIONS(TALOS_OPERATION_FACT)
    TALOS_KINDS(TALOS_KIND_FACT)
    {nullptr, nullptr, {}},
};

}  // namespace
}  // namespace talos

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {

// The fields of a task with their letters and offsets, the operations in the order of their numbers, and the kinds of φ in the
// order of theirs, from 1 on, with the numbers that their functors declare. A null topic is the end.
const talos::Fact* talos_core_facts() { return talos::kFacts; }

// The highest level that this processor supports; it supports all lower ones as well.
int32_t talos_core_best_level() {
#if defined(TALOS_X86) && defined(_WIN32)
    // Windows' own function, since the compiler's needs a library that is not linked there. It names only the first part of
    // AVX-512, but no processor that Windows runs on has it without the others.
    if (IsProcessorFeaturePresent(PF_AVX512F_INSTRUCTIONS_AVAILABLE)) return 2;
    return IsProcessorFeaturePresent(PF_AVX2_INSTRUCTIONS_AVAILABLE) ? 1 : 0;
#elif defined(TALOS_X86)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
    return 0;
#else
    return sizeof(talos::kLevels) / sizeof(talos::kLevels[0]) - 1;  // every 64-bit ARM processor has NEON
#endif
}

const char* talos_core_level_name(int32_t level) { return talos::kLevels[level].name; }

// Whether bfloat16 products are compiled in and supported by this processor.
int32_t talos_core_has_bfloat16() { return talos::multiplies_bfloat16(); }

int64_t talos_core_workspace_bytes(int32_t level, int32_t operation, const talos::Task* task) {
    return 4 * talos::operation_of(level, operation, *task).workspace(*task);
}

// Runs an operation for every task: task i on thread i mod `threads`, whose tasks may have the same workspace. Returns 0, or 1
// if threads could not be started.
int32_t talos_core_run(int32_t level, int32_t operation, const talos::Task* tasks, int64_t count, int64_t threads) {
    try {
        const talos::Operation& of_level = talos::operation_of(level, operation, *tasks);
        talos::plain::run_team(*tasks, threads, [&](const int64_t index) {
            for (int64_t i = index; i < count; i += threads) of_level.run(tasks[i]);
        });
        return 0;
    } catch (...) {
        return 1;
    }
}

}  // extern "C"
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
