// A few threads kept between calls: a call here lasts about as long as starting a thread does.
#pragma once
#include <cstddef>
#include <functional>

namespace fedmpdd {

// Calls body(item, worker) for every item in [0, items), on at most `threads` threads, the caller's included;
// worker < threads tells which scratch memory to use. Items are handed out in order but end in any order, so a
// body must not depend on that. Safe to call from several threads at once: the second caller works alone.
// The body must not throw.
void parallel_for(std::size_t items, int threads, const std::function<void(std::size_t, int)>& body);

// No more threads than there are pieces of work worth waking one for.
inline int worthwhile_threads(int threads, double work, double work_per_thread) {
  const double most = work / work_per_thread;
  return most < 1.0 ? 1 : most < threads ? static_cast<int>(most) : threads;
}

}  // namespace fedmpdd
