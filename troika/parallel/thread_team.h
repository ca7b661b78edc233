// A fixed set of threads that run the same function at the same time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace troika::parallel {

class ThreadTeam {
 public:
  // Starts `size` threads. Each gets an equal part of the calling thread's LibTorch threads, at
  // least one.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // Calls `body(i)` on each thread i, with the caller's LibTorch state (gradients on or off), and
  // waits for all. Rethrows the error of the lowest i that failed.
  void run(const std::function<void(int)>& body);

 private:
  void work(int index, int torch_threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* body_ = nullptr;
  uint64_t turn_ = 0;  // number of calls of run()
  int busy_ = 0;       // threads that have not finished this turn
  bool closing_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::jthread> threads_;
};

}  // namespace troika::parallel
