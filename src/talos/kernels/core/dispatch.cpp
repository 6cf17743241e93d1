// The C interface: selects the version for an instruction set and calls it.
#include "lists.h"
#include "samples.h"
#include "sets.h"
#include "sweep.h"

#if defined(TALOS_X86) && defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace {

struct Level {
    const char* name;
    int64_t (*workspace_bytes)(const talos::Task&);
    void (*sweep)(const talos::Task&);
    void (*unit_rows)(const talos::Rows&);
    void (*add_positives)(const talos::Positives&);
    void (*least_squares)(const talos::LeastSquares&);
    int64_t (*group_workspace_bytes)(const talos::Groups&, const talos::SweepFunctions&);
    void (*group_sweep)(const talos::Groups&, const talos::SweepFunctions&);
    void (*group_scores)(const talos::Groups&);
    void (*pair_scores)(const talos::Pairs&);
    void (*adam_rows)(const talos::AdamRows&);
    int64_t (*smooth_places_workspace_bytes)(const talos::Lists&);
    void (*smooth_places)(const talos::Lists&);
};

#define TALOS_LEVEL_ENTRY(name, level) \
    {name, talos::level::workspace_bytes, talos::level::sweep, talos::level::unit_rows, talos::level::add_positives, \
     talos::level::least_squares, talos::level::group_workspace_bytes, talos::level::group_sweep, \
     talos::level::group_scores, talos::level::pair_scores, talos::level::adam_rows, \
     talos::level::smooth_places_workspace_bytes, talos::level::smooth_places}

constexpr Level kLevels[] = {
    TALOS_LEVEL_ENTRY("plain", plain),
#ifdef TALOS_X86
    TALOS_LEVEL_ENTRY("AVX2", avx2),
    TALOS_LEVEL_ENTRY("AVX-512", avx512),
#endif
#ifdef TALOS_ARM64
    TALOS_LEVEL_ENTRY("NEON", neon),
#endif
};
constexpr int kCount = sizeof(kLevels) / sizeof(kLevels[0]);

bool multiplies_bfloat16() {
#ifdef TALOS_BFLOAT16
    static const bool has = __builtin_cpu_supports("avx512bf16");
    return has;
#else
    return false;
#endif
}

// Whether this task is for the highest level's version with bfloat16 products.
[[maybe_unused]] bool in_bfloat16(const int32_t level, const talos::Task& task) {
    return task.bfloat16 && level == kCount - 1 && multiplies_bfloat16();
}

talos::SweepFunctions sweep_of(const int32_t level, [[maybe_unused]] const talos::Task& task) {
#ifdef TALOS_BFLOAT16
    if (in_bfloat16(level, task)) return {talos::avx512bf16::workspace_bytes, talos::avx512bf16::sweep};
#endif
    return {kLevels[level].workspace_bytes, kLevels[level].sweep};
}

}  // namespace

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {

// Incremented whenever a struct or a function changes, so that a stale build is detected and not used.
int32_t talos_core_version() { return 11; }

int32_t talos_core_task_bytes() { return static_cast<int32_t>(sizeof(talos::Task)); }

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
    return kCount - 1;  // every 64-bit ARM processor has NEON
#endif
}

const char* talos_core_level_name(int32_t level) {
    return level >= 0 && level < kCount ? kLevels[level].name : "";
}

// Whether bfloat16 products are compiled in and supported by this processor.
int32_t talos_core_has_bfloat16() { return multiplies_bfloat16(); }

int64_t talos_core_workspace_bytes(int32_t level, const talos::Task* task) {
    return sweep_of(level, *task).workspace_bytes(*task);
}

void talos_core_sweep(int32_t level, const talos::Task* task) { sweep_of(level, *task).sweep(*task); }

void talos_core_unit_rows(int32_t level, const talos::Rows* task) { kLevels[level].unit_rows(*task); }

void talos_core_add_positives(int32_t level, const talos::Positives* task) { kLevels[level].add_positives(*task); }

void talos_core_least_squares(int32_t level, const talos::LeastSquares* task) { kLevels[level].least_squares(*task); }

int64_t talos_core_group_workspace_bytes(int32_t level, const talos::Groups* groups) {
    return kLevels[level].group_workspace_bytes(*groups, sweep_of(level, groups->task));
}

void talos_core_group_sweep(int32_t level, const talos::Groups* groups) {
    kLevels[level].group_sweep(*groups, sweep_of(level, groups->task));
}

void talos_core_group_scores(int32_t level, const talos::Groups* groups) { kLevels[level].group_scores(*groups); }

void talos_core_pair_scores(int32_t level, const talos::Pairs* task) { kLevels[level].pair_scores(*task); }

void talos_core_adam_rows(int32_t level, const talos::AdamRows* task) { kLevels[level].adam_rows(*task); }

int64_t talos_core_smooth_places_workspace_bytes(int32_t level, const talos::Lists* task) {
    return kLevels[level].smooth_places_workspace_bytes(*task);
}

void talos_core_smooth_places(int32_t level, const talos::Lists* task) { kLevels[level].smooth_places(*task); }

int64_t talos_core_distinct_workspace_bytes(int64_t bound) { return talos::distinct_workspace_bytes(bound); }

int64_t talos_core_distinct(const talos::Distinct* task) { return talos::distinct(*task); }

int64_t talos_core_drawn_positives(const talos::DrawnPositives* task) { return talos::drawn_positives(*task); }

}  // extern "C"
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
