// Threads that do the same thing at the same time, kept between the times.
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
  // Each with an equal part of the threads that LibTorch has in the thread that calls, at least
  // one.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // Calls `body(i)` on each thread i, with the caller's LibTorch state (gradients on or off), and
  // waits for all. Throws what the first of those that failed threw.
  void run(const std::function<void(int)>& body);

 private:
  void work(int index, int torch_threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* body_ = nullptr;
  uint64_t turn_ = 0;  // counts calls of run()
  int busy_ = 0;       // threads that have not ended this turn
  bool closing_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::jthread> threads_;
};

}  // namespace troika::parallel
