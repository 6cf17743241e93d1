// Several threads at one piece of work.
//
// Threads of our own would compete with torch's: those of its OpenMP pool go on spinning for a while after each
// operation, and on a machine with as many cores as threads every step would begin on half of them. So where the
// caller has found the pool's entry points (they are looked up, not linked to) the work is done by the pool itself.
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
        if (!complete && index == 0) spawn();  // inside somebody else's parallel region there may be fewer
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

// Calls work(0) … work(threads - 1), all at the same time.
template <class Work>
void run_team(const Team& team, const int64_t threads, const Work& work) {
    TeamWork<Work>(team, threads, work).run();
}

constexpr int64_t kWorkPerThread = 1 << 17;  // numbers

// Calls work(from, to) for equal shares of 0 … count.
template <class Work>
void in_parallel(const Team& team, const int64_t count, const int64_t numbers, const int64_t wanted, const Work& work) {
    const int64_t threads = std::max<int64_t>(1, std::min(wanted, std::min(count, numbers / kWorkPerThread)));
    run_team(team, threads, [&](const int64_t i) { work(count * i / threads, count * (i + 1) / threads); });
}

}  // namespace talos::TALOS_LEVEL
