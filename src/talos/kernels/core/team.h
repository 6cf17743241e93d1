// Runs work on several threads.
//
// Threads of our own would compete with torch's: those of its OpenMP pool keep spinning for a while after each operation, and
// with as many threads as cores every step would start with half of the cores. So if the caller passes the pool's entry points
// (they are looked up at run time, not linked), the work runs in that pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "task.h"
#include "vector.h"

namespace talos::TALOS_LEVEL {

template <class Work>
struct Team {
    const Task& task;
    const int64_t threads;
    const Work& work;
    std::atomic<int64_t> next{0};
    bool failed = false;

    void run() {
        if (threads == 1) return work(0);
        if (task.parallel && task.team_size) task.parallel(&Team::enter, this, static_cast<unsigned>(threads), 0);
        else spawn();
        if (failed) throw std::bad_alloc();
    }

    static void enter(void* const self) { static_cast<Team*>(self)->join(); }

    void join() {
        const int64_t index = next.fetch_add(1);
        const bool complete = task.team_size() >= threads;
        if (complete && index < threads) work(index);
        if (!complete && index == 0) spawn();  // a nested parallel region may get fewer threads
    }

    // Threads wait for each other in their work, so none begins unless all could be started.
    void spawn() {
        enum Signal { kWait, kBegin, kGiveUp };
        std::atomic<Signal> signal{kWait};
        std::vector<std::thread> others;
        try {
            others.reserve(threads);
            for (int64_t index = 1; index < threads; ++index)
                others.emplace_back([this, index, &signal] {
                    while (signal == kWait) std::this_thread::yield();
                    if (signal == kBegin) work(index);
                });
        } catch (...) {
            failed = true;
        }
        signal = failed ? kGiveUp : kBegin;
        if (!failed) work(0);
        for (std::thread& other : others) other.join();
    }
};

// Calls work(0) … work(threads - 1) concurrently. Throws std::bad_alloc, before any work, if threads cannot be started.
template <class Work>
void run_team(const Task& task, const int64_t threads, const Work& work) {
    Team<Work>{task, threads, work}.run();
}

constexpr int64_t kWorkPerThread = 1 << 17;  // numbers; for less, another thread does not pay off

// How many threads pay off for `count` pieces that are `numbers` of work in all.
inline int64_t threads_for(const Task& task, const int64_t count, const int64_t numbers) {
    return std::max<int64_t>(1, std::min(task.threads, std::min(count, numbers / kWorkPerThread)));
}

// Calls work(from, to) concurrently for equal ranges of 0 … count.
template <class Work>
void in_parallel(const Task& task, const int64_t count, const int64_t numbers, const Work& work) {
    const int64_t threads = threads_for(task, count, numbers);
    run_team(task, threads, [&](const int64_t i) { work(count * i / threads, count * (i + 1) / threads); });
}

}  // namespace talos::TALOS_LEVEL
