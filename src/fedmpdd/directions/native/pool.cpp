#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "float_environment.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace fedmpdd {
namespace {

constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Its threads wait for ever: a pool is made once and never destroyed.
class Pool {
 public:
  // Returns false, having done nothing, when another thread is using the pool.
  bool run(std::size_t items, int threads, const std::function<void(std::size_t, int)>& body) {
    std::unique_lock<std::mutex> user(user_mutex_, std::try_to_lock);
    if (!user.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try {
        for (; workers_ < threads - 1; ++workers_) std::thread([this, worker = workers_ + 1] { serve(worker); }).detach();
      } catch (const std::system_error&) {
        // No more threads to be had here: those there are do the work, and the result is the same.
        threads = workers_ + 1;
      }
      body_ = &body;
      items_ = items;
      next_.store(0, std::memory_order_relaxed);
      wanted_ = threads - 1;
      busy_.store(wanted_, std::memory_order_relaxed);
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work(0);
    if (!spin([this] { return busy_.load(std::memory_order_acquire) == 0; })) {
      std::unique_lock<std::mutex> lock(mutex_);
      done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
    }
    return true;
  }

 private:
  void work(int worker) {
    for (std::size_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) (*body_)(item, worker);
  }

  void serve(int worker) {
    const PlainFloatEnvironment plain;
    unsigned long seen = 0;
    for (;;) {
      spin([&] { return job_.load(std::memory_order_acquire) != seen; });
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen && worker <= wanted_; });
        seen = job_.load(std::memory_order_relaxed);
      }
      work(worker);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  // Sleeping and waking costs more than many a job: look for a change for some tens of microseconds first.
  template <class Ready>
  static bool spin(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return true;
      pause();
    }
    return false;
  }

  std::mutex user_mutex_, mutex_;
  std::condition_variable wake_, done_;
  int workers_ = 0;
  const std::function<void(std::size_t, int)>* body_ = nullptr;
  std::size_t items_ = 0;
  std::atomic<std::size_t> next_{0};
  int wanted_ = 0;
  std::atomic<int> busy_{0};
  std::atomic<unsigned long> job_{0};
};

Pool* pool = nullptr;
std::once_flag pool_once;

// Threads do not survive a fork: the child starts a new pool and leaves the old one's memory alone.
void forget_pool() { pool = new Pool; }

}  // namespace

void parallel_for(std::size_t items, int threads, const std::function<void(std::size_t, int)>& body) {
  if (static_cast<std::size_t>(threads) > items) threads = static_cast<int>(items);
  if (threads > 1) {
    std::call_once(pool_once, [] {
      // Never destroyed: worker threads may outlive static destruction at interpreter exit.
      pool = new Pool;
#if defined(__unix__) || defined(__APPLE__)
      pthread_atfork(nullptr, nullptr, forget_pool);
#endif
    });
    if (pool->run(items, threads, body)) return;
  }
  for (std::size_t item = 0; item < items; ++item) body(item, 0);
}

}  // namespace fedmpdd
