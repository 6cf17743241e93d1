// The interface of sets.cpp; talos/kernels/library.py repeats the structs field by field.
#pragma once

#include <cstdint>

namespace talos {

// The distinct numbers among many below a bound, ascending, and the place of each of the many among them.
struct Distinct {
    int64_t count, bound;
    const int64_t* values;  // (count), from 0 to below `bound`
    uint64_t* workspace;    // distinct_workspace_bytes(bound) bytes
    int64_t* distinct;      // room for as many as `count` or `bound`, whichever is less
    int64_t* places;        // (count)
};

// The places in each user's sample that hold one of the user's positives, ascending; as CSR.
struct DrawnPositives {
    int64_t groups, sample, items;
    const int64_t* first;     // (groups + 1) users of group g: first[g] .. first[g + 1)
    const int64_t* drawn;     // (groups, sample), below `items`
    const int64_t* start;     // (users + 1)
    const int64_t* items_of;  // positives of user u: items_of[start[u] .. start[u + 1]), below `items`
    int64_t room;             // of `found`
    int64_t* found_start;     // (users + 1)
    int64_t* found;           // what does not fit is only counted
};

int64_t distinct_workspace_bytes(int64_t bound);
int64_t distinct(const Distinct& task);                   // how many there are
int64_t drawn_positives(const DrawnPositives& task);      // how many there are

}  // namespace talos
