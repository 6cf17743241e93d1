// Which items a batch needs, and which drawn items are positives: sets of integers, without vectors.
#include "sets.h"

#include <algorithm>
#include <vector>

namespace talos {
namespace {

constexpr int64_t kBits = 64;

int64_t words_of(const int64_t bound) { return (bound + kBits - 1) / kBits; }

}  // namespace

int64_t distinct_workspace_bytes(const int64_t bound) { return words_of(bound) * 2 * static_cast<int64_t>(sizeof(uint64_t)); }

// A bit for every number that occurs; the place of a number is how many bits are set before its own.
int64_t distinct(const Distinct& task) {
    const int64_t words = words_of(task.bound);
    uint64_t *const bits = task.workspace, *const before = task.workspace + words;
    std::fill_n(bits, words, 0);
    for (int64_t i = 0; i < task.count; ++i) bits[task.values[i] / kBits] |= uint64_t{1} << (task.values[i] % kBits);
    int64_t found = 0;
    for (int64_t w = 0; w < words; ++w) {
        before[w] = static_cast<uint64_t>(found);
        for (uint64_t left = bits[w]; left; left &= left - 1) task.distinct[found++] = w * kBits + __builtin_ctzll(left);
    }
    for (int64_t i = 0; i < task.count; ++i) {
        const int64_t w = task.values[i] / kBits;
        const uint64_t lower = bits[w] & ((uint64_t{1} << (task.values[i] % kBits)) - 1);
        task.places[i] = static_cast<int64_t>(before[w]) + __builtin_popcountll(lower);
    }
    return found;
}

// For each group: chains of the places in its sample by item, through which every positive of its users is looked up.
int64_t drawn_positives(const DrawnPositives& task) {
    std::vector<int32_t> first_place(task.items, -1), next(task.sample);
    int64_t found = 0;
    for (int64_t g = 0; g < task.groups; ++g) {
        const int64_t* const drawn = task.drawn + g * task.sample;
        for (int64_t j = task.sample - 1; j >= 0; --j) {  // from the last, so that chains ascend
            next[j] = first_place[drawn[j]];
            first_place[drawn[j]] = static_cast<int32_t>(j);
        }
        for (int64_t u = task.first[g]; u < task.first[g + 1]; ++u) {
            const int64_t from = found;
            task.found_start[u] = found;
            for (int64_t i = task.start[u]; i < task.start[u + 1]; ++i)
                for (int32_t j = first_place[task.items_of[i]]; j >= 0; j = next[j], ++found)
                    if (found < task.room) task.found[found] = j;
            if (found <= task.room) std::sort(task.found + from, task.found + found);
        }
        for (int64_t j = 0; j < task.sample; ++j) first_place[drawn[j]] = -1;
    }
    task.found_start[task.first[task.groups]] = found;
    return found;
}

}  // namespace talos
