// What reading a hundred million rows costs most: ids to codes, and rows sorted by user and item.
//
// A library of its own without vector instructions, called with plain pointers: the memory of all arrays is the caller's.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "arrow.h"

namespace {

// Calls work(t) for t = 0 … threads - 1, each on a thread of its own.
template <typename Work>
void on_threads(const int64_t threads, const Work& work) {
    std::vector<std::thread> team;
    for (int64_t t = 1; t < threads; ++t) team.emplace_back(work, t);
    work(0);
    for (auto& one : team) one.join();
}

// ------------------------------------------------------------------------------------------------------------------ ids

// An id of up to 12 bytes as Arrow's views have it: its length and its bytes, zeros after them. Of a longer one the length,
// four bytes and a hash of all; then the bytes have to be compared as well. An integer is its value and a length of -1.
struct Key {
    uint64_t low, high;
    bool operator==(const Key& other) const { return low == other.low && high == other.high; }
};

uint64_t mixed(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9FB21C651E98DF25ull;
    x ^= x >> 29;
    return x;
}

uint64_t hash_of(const char* const bytes, const int64_t length, const uint64_t seed) {
    uint64_t hash = seed ^ static_cast<uint64_t>(length);
    int64_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes + i, 8);
        hash = mixed(hash ^ word) * 0xD6E8FEB86659FD93ull;
    }
    uint64_t word = 0;
    if (i < length) std::memcpy(&word, bytes + i, length - i);
    return mixed(hash ^ word);
}

// Distinct ids and their codes, which count up in the order of first occurrence: a hash table with linear probing.
class Ids {
   public:
    explicit Ids(const uint64_t seed) : seed_(seed) { resize(1 << 12); }

    // The codes of `count` ids; the places of those that are new go to `fresh`. `at(i)` has the bytes of a long id.
    template <typename KeyAt, typename BytesAt>
    void encode(const int64_t count, const KeyAt& key_at, const BytesAt& at, int32_t* const codes,
                std::vector<int64_t>& fresh, const int64_t first) {
        constexpr int64_t kBatch = 32;  // slots are fetched for so many ids at once, because they are scattered over memory
        Key keys[kBatch];
        uint64_t hashes[kBatch];
        for (int64_t from = 0; from < count; from += kBatch) {
            const int64_t some = std::min(kBatch, count - from);
            if (static_cast<size_t>(2 * (places_.size() + some)) > slots_.size()) resize(2 * slots_.size());
            for (int64_t n = 0; n < some; ++n) {
                keys[n] = key_at(from + n);
                hashes[n] = mixed(keys[n].low ^ seed_) * 0xD6E8FEB86659FD93ull + mixed(keys[n].high);
                hashes[n] ^= hashes[n] >> 32;
                __builtin_prefetch(&slots_[hashes[n] & mask_]);
            }
            for (int64_t n = 0; n < some; ++n) codes[from + n] = code_of(keys[n], hashes[n], at, from + n, fresh, first);
        }
    }

    uint64_t seed() const { return seed_; }

   private:
    struct Slot {
        Key key;
        int64_t code;  // -1 if empty
    };

    template <typename BytesAt>
    int32_t code_of(const Key& key, const uint64_t hash, const BytesAt& at, const int64_t place,
                    std::vector<int64_t>& fresh, const int64_t first) {
        for (uint64_t i = hash & mask_;; i = (i + 1) & mask_) {
            Slot& slot = slots_[i];
            if (slot.code < 0) {
                slot = {key, static_cast<int64_t>(places_.size())};
                places_.push_back(-1);
                if (is_long(key)) {
                    places_.back() = static_cast<int64_t>(bytes_.size());
                    const char* const bytes = at(place);
                    bytes_.insert(bytes_.end(), bytes, bytes + length_of(key));
                }
                fresh.push_back(first + place);
                return static_cast<int32_t>(slot.code);
            }
            if (slot.key == key && (!is_long(key) || std::memcmp(bytes_.data() + places_[slot.code], at(place),
                                                                 length_of(key)) == 0))
                return static_cast<int32_t>(slot.code);
        }
    }

    static int64_t length_of(const Key& key) { return static_cast<int32_t>(key.low & 0xFFFFFFFF); }
    static bool is_long(const Key& key) { return length_of(key) > 12; }

    void resize(const size_t size) {
        std::vector<Slot> before(size, Slot{{0, 0}, -1});
        before.swap(slots_);
        mask_ = size - 1;
        for (const Slot& slot : before) {
            if (slot.code < 0) continue;
            uint64_t hash = mixed(slot.key.low ^ seed_) * 0xD6E8FEB86659FD93ull + mixed(slot.key.high);
            hash ^= hash >> 32;
            uint64_t i = hash & mask_;
            while (slots_[i].code >= 0) i = (i + 1) & mask_;
            slots_[i] = slot;
        }
    }

    uint64_t seed_, mask_ = 0;
    std::vector<Slot> slots_;
    std::vector<int64_t> places_;  // by code: where the bytes of a long id begin in `bytes_`, else -1
    std::vector<char> bytes_;
};

Key key_of(const char* const bytes, const int64_t length, const uint64_t seed) {
    Key key = {static_cast<uint64_t>(static_cast<uint32_t>(length)), 0};
    if (length <= 12) {
        char padded[12] = {};
        std::memcpy(padded, bytes, length);
        uint32_t prefix;
        std::memcpy(&prefix, padded, 4);
        std::memcpy(&key.high, padded + 4, 8);
        key.low |= static_cast<uint64_t>(prefix) << 32;
    } else {
        uint32_t prefix;
        std::memcpy(&prefix, bytes, 4);
        key.low |= static_cast<uint64_t>(prefix) << 32;
        key.high = hash_of(bytes, length, seed);
    }
    return key;
}

// A chunk of strings as polars exports it: views ("vu"), or offsets into one buffer ("U").
void encode_chunk(Ids& ids, const ArrowArray& chunk, const bool views, int32_t* const codes, std::vector<int64_t>& fresh,
                  const int64_t first) {
    if (views) {
        const auto* const all = static_cast<const char*>(chunk.buffers[1]) + 16 * chunk.offset;
        const auto bytes_at = [&](const int64_t i) {
            const char* const view = all + 16 * i;
            int32_t where[4];
            std::memcpy(where, view, 16);
            return where[0] <= 12 ? view + 4 : static_cast<const char*>(chunk.buffers[2 + where[2]]) + where[3];
        };
        const auto key_at = [&](const int64_t i) {
            Key key;
            std::memcpy(&key, all + 16 * i, 16);
            if (static_cast<int32_t>(key.low & 0xFFFFFFFF) > 12)
                key.high = hash_of(bytes_at(i), static_cast<int32_t>(key.low & 0xFFFFFFFF), ids.seed());
            return key;
        };
        ids.encode(chunk.length, key_at, bytes_at, codes, fresh, first);
    } else {
        const auto* const offsets = static_cast<const int64_t*>(chunk.buffers[1]) + chunk.offset;
        const auto* const data = static_cast<const char*>(chunk.buffers[2]);
        const auto bytes_at = [&](const int64_t i) { return data + offsets[i]; };
        const auto key_at = [&](const int64_t i) {
            return key_of(data + offsets[i], offsets[i + 1] - offsets[i], ids.seed());
        };
        ids.encode(chunk.length, key_at, bytes_at, codes, fresh, first);
    }
}

// ----------------------------------------------------------------------------------------------------------------- sort

constexpr int kMostBucketBits = 14;
constexpr int64_t kRowsInBucket = 1 << 16;  // with a second copy about a megabyte: a core's cache

int bits_of(const int64_t size) {
    int bits = 0;
    while (bits < 62 && (int64_t{1} << bits) < size) ++bits;
    return bits;
}

}  // namespace

struct SortTask {
    int64_t rows, num_users, num_items, threads;
    const int32_t* users;   // (rows,)
    const int32_t* items;   // (rows,)
    uint64_t* packed;       // (rows,) workspace: for each bucket of users the rest of the user, the item and the row
    int64_t* indptr;        // (num_users + 1,) out
    int64_t* bucket_start;  // (2^kMostBucketBits + 1,) workspace
    // second step
    int32_t* sorted_items;         // (distinct pairs,) out
    uint32_t* kept_rows;           // (distinct pairs,) out
    int32_t* repeats;              // (distinct pairs,) out, or null if every pair occurs once
    const int64_t* whole_stamps;   // (rows,) or null
    const double* float_stamps;    // (rows,) or null
};

namespace {

struct Layout {
    explicit Layout(const SortTask& task)
        : user_bits(bits_of(task.num_users)), item_bits(bits_of(task.num_items)), row_bits(bits_of(task.rows)) {
        const int fitting = bits_of(task.rows / kRowsInBucket);
        bucket_bits = std::min({user_bits, kMostBucketBits, std::max(fitting, user_bits + item_bits + row_bits - 64)});
        low_bits = user_bits - bucket_bits;
    }
    bool fits() const { return low_bits + item_bits + row_bits <= 64 && row_bits <= 32; }
    int user_bits, item_bits, row_bits, bucket_bits, low_bits;
};

// Sorts by everything above the row number, which keeps the order of rows with the same pair: radix sort from the low end.
void sort_bucket(uint64_t* const values, uint64_t* const spare, const int64_t count, const int from, const int to) {
    constexpr int kDigit = 10;
    if (count < 256) return std::sort(values, values + count), void();
    uint64_t *source = values, *target = spare;
    for (int shift = from; shift < to; shift += kDigit) {
        const int digit = std::min(kDigit, to - shift);
        const uint64_t mask = (uint64_t{1} << digit) - 1;
        uint32_t start[(1 << kDigit) + 1] = {};
        for (int64_t i = 0; i < count; ++i) ++start[(source[i] >> shift & mask) + 1];
        for (uint64_t d = 0; d < mask; ++d) start[d + 1] += start[d];
        for (int64_t i = 0; i < count; ++i) target[start[source[i] >> shift & mask]++] = source[i];
        std::swap(source, target);
    }
    if (source != values) std::memcpy(values, source, count * sizeof(uint64_t));
}

// Each bucket on some thread.
template <typename Work>
void each_bucket(const int64_t threads, const int64_t buckets, const Work& work) {
    std::atomic<int64_t> next{0};
    on_threads(threads, [&](const int64_t) {
        std::vector<uint64_t> spare;
        for (int64_t bucket; (bucket = next++) < buckets;) work(bucket, spare);
    });
}

}  // namespace

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
extern "C" {

// Incremented whenever a struct or a function changes, so that a stale build is detected and not used.
int32_t talos_rows_version() { return 1; }

void* talos_ids_new(const uint64_t seed) { return new Ids(seed); }

void talos_ids_free(void* const ids) { delete static_cast<Ids*>(ids); }

// Codes of a column of strings; `fresh` (rows,) gets the places of ids that did not occur before, ascending. Returns how
// many these are; -1 if there is a missing value, -2 if the strings are stored in a way that is not known here.
int64_t talos_ids_strings(void* const ids, ArrowArrayStream* const stream, const int64_t rows, int32_t* const codes,
                          int64_t* const fresh) {
    ArrowSchema schema;
    if (stream->get_schema(stream, &schema)) return -2;
    const bool views = std::strcmp(schema.format, "vu") == 0, offsets = std::strcmp(schema.format, "U") == 0;
    schema.release(&schema);
    if (!views && !offsets) return -2;
    std::vector<int64_t> found;
    int64_t first = 0;
    for (;;) {
        ArrowArray chunk;
        if (stream->get_next(stream, &chunk)) return -2;
        if (!chunk.release) break;
        const bool good = chunk.null_count == 0 || (chunk.null_count < 0 && !chunk.buffers[0]);
        const bool room = first + chunk.length <= rows;
        if (good && room) encode_chunk(*static_cast<Ids*>(ids), chunk, views, codes + first, found, first);
        first += chunk.length;
        chunk.release(&chunk);
        if (!room) return -2;
        if (!good) return -1;
    }
    if (first != rows) return -2;
    std::copy(found.begin(), found.end(), fresh);
    return static_cast<int64_t>(found.size());
}

// The same for integers.
int64_t talos_ids_integers(void* const ids, const int64_t* const values, const int64_t rows, int32_t* const codes,
                           int64_t* const fresh) {
    std::vector<int64_t> found;
    const auto key_at = [&](const int64_t i) { return Key{0xFFFFFFFFull, static_cast<uint64_t>(values[i])}; };
    const auto bytes_at = [&](int64_t) { return reinterpret_cast<const char*>(values); };  // not asked for: no key is long
    static_cast<Ids*>(ids)->encode(rows, key_at, bytes_at, codes, found, 0);
    std::copy(found.begin(), found.end(), fresh);
    return static_cast<int64_t>(found.size());
}

// First step: sorts rows by (user, item, row) into `packed`, and puts the number of distinct pairs before each user into
// `indptr`. Returns the number of distinct pairs, or -1 if user, item and row do not fit into 64 bits.
int64_t talos_rows_sort(SortTask* const task) {
    const Layout layout(*task);
    if (!layout.fits()) return -1;
    const int64_t buckets = int64_t{1} << layout.bucket_bits;
    const int64_t threads = std::max<int64_t>(1, std::min(task->threads, task->rows / (1 << 14)));
    const auto from = [&](const int64_t t) { return task->rows / threads * t; };
    const auto to = [&](const int64_t t) { return t + 1 == threads ? task->rows : from(t + 1); };
    std::vector<std::vector<int64_t>> start(threads, std::vector<int64_t>(buckets));
    on_threads(threads, [&](const int64_t t) {
        for (int64_t i = from(t); i < to(t); ++i) ++start[t][task->users[i] >> layout.low_bits];
    });
    int64_t sum = 0;
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
        task->bucket_start[bucket] = sum;
        for (int64_t t = 0; t < threads; ++t) sum += std::exchange(start[t][bucket], sum);
    }
    task->bucket_start[buckets] = sum;
    const uint64_t low = (uint64_t{1} << layout.low_bits) - 1;
    on_threads(threads, [&](const int64_t t) {
        int64_t* const next = start[t].data();
        for (int64_t i = from(t); i < to(t); ++i) {
            const auto user = static_cast<uint64_t>(task->users[i]), item = static_cast<uint64_t>(task->items[i]);
            task->packed[next[user >> layout.low_bits]++] =
                ((user & low) << layout.item_bits | item) << layout.row_bits | static_cast<uint64_t>(i);
        }
    });
    std::fill_n(task->indptr, task->num_users + 1, 0);
    const int top = layout.low_bits + layout.item_bits + layout.row_bits;
    each_bucket(threads, buckets, [&](const int64_t bucket, std::vector<uint64_t>& spare) {
        uint64_t* const values = task->packed + task->bucket_start[bucket];
        const int64_t count = task->bucket_start[bucket + 1] - task->bucket_start[bucket];
        if (static_cast<int64_t>(spare.size()) < count) spare.resize(count);
        sort_bucket(values, spare.data(), count, layout.row_bits, top);
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t pair = values[i] >> layout.row_bits;
            if (i + 1 == count || values[i + 1] >> layout.row_bits != pair)
                ++task->indptr[(bucket << layout.low_bits | static_cast<int64_t>(pair >> layout.item_bits)) + 1];
        }
    });
    for (int64_t user = 0; user < task->num_users; ++user) task->indptr[user + 1] += task->indptr[user];
    return task->indptr[task->num_users];
}

// Second step: of each pair the item, the row that is kept (the latest; the last one where times are equal or absent), and
// how many rows there are.
void talos_rows_emit(const SortTask* const task) {
    const Layout layout(*task);
    const int64_t buckets = int64_t{1} << layout.bucket_bits;
    const uint64_t item_mask = (uint64_t{1} << layout.item_bits) - 1, row_mask = (uint64_t{1} << layout.row_bits) - 1;
    each_bucket(std::max<int64_t>(1, task->threads), buckets, [&](const int64_t bucket, std::vector<uint64_t>&) {
        const int64_t first_user = bucket << layout.low_bits;
        if (first_user >= task->num_users) return;
        int64_t out = task->indptr[first_user];
        const int64_t end = task->bucket_start[bucket + 1];
        for (int64_t i = task->bucket_start[bucket]; i < end; ++out) {
            const uint64_t pair = task->packed[i] >> layout.row_bits;
            uint64_t row = task->packed[i] & row_mask;
            const int64_t began = i++;
            for (; i < end && task->packed[i] >> layout.row_bits == pair; ++i) {
                const uint64_t other = task->packed[i] & row_mask;
                if (task->whole_stamps ? task->whole_stamps[other] >= task->whole_stamps[row]
                                       : !task->float_stamps || task->float_stamps[other] >= task->float_stamps[row])
                    row = other;
            }
            task->sorted_items[out] = static_cast<int32_t>(pair & item_mask);
            task->kept_rows[out] = static_cast<uint32_t>(row);
            if (task->repeats) task->repeats[out] = static_cast<int32_t>(i - began);
        }
    });
}

}  // extern "C"
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
