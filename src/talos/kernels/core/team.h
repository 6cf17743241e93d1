// Runs work on several threads.
//
// Threads of our own would compete with torch's: those of its OpenMP pool keep spinning for a while after each
// operation, and with as many threads as cores every step would start with half of the cores. So if the caller passes
// the pool's entry points (they are looked up at run time, not linked), the work runs in that pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "sweep.h"
#include "vector.h"

namespace talos::TALOS_LEVEL {

template <class Work>
class TeamWork {
public:
    TeamWork(const Team& team, const int64_t threads, const Work& work) : team_(team), threads_(threads), work_(work) {}

    void run() {
        if (threads_ == 1) return work_(0);
        if (!team_.parallel || !team_.size) return spawn();
        team_.parallel(&TeamWork::enter, this, static_cast<unsigned>(threads_), 0);
    }

private:
    static void enter(void* const self) { static_cast<TeamWork*>(self)->join(); }

    void join() {
        const int64_t index = next_.fetch_add(1);
        const bool complete = team_.size() >= threads_;
        if (complete && index < threads_) work_(index);
        if (!complete && index == 0) spawn();  // a nested parallel region may get fewer threads
    }

    void spawn() const {
        std::vector<std::thread> others;
        for (int64_t index = 1; index < threads_; ++index) others.emplace_back([this, index] { work_(index); });
        work_(0);
        for (std::thread& other : others) other.join();
    }

    const Team team_;
    const int64_t threads_;
    const Work& work_;
    std::atomic<int64_t> next_{0};
};

// Calls work(0) … work(threads - 1) concurrently.
template <class Work>
void run_team(const Team& team, const int64_t threads, const Work& work) {
    TeamWork<Work>(team, threads, work).run();
}

constexpr int64_t kWorkPerThread = 1 << 17;  // numbers; for less, another thread does not pay off

// Calls work(from, to) concurrently for equal shares of 0 … count; `numbers` is the total amount of work.
template <class Work>
void in_parallel(const Team& team, const int64_t count, const int64_t numbers, const int64_t wanted, const Work& work) {
    const int64_t threads = std::max<int64_t>(1, std::min(wanted, std::min(count, numbers / kWorkPerThread)));
    run_team(team, threads, [&](const int64_t i) { work(count * i / threads, count * (i + 1) / threads); });
}

}  // namespace talos::TALOS_LEVEL
