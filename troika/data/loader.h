// Batches loaded ahead by worker threads, handed out in order.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <variant>

#include "troika/base/clock.h"
#include "troika/data/dataset.h"

namespace troika::data {

struct LoaderOptions {
  int workers = 1;   // threads; 0: next() itself loads. Results do not depend on it.
  int prefetch = 4;  // batches that may be loaded or loading ahead of next(); >= 1
  // How long next() waits for a worker, where data may be on a file system that hangs.
  Milliseconds patience = std::chrono::minutes(5);
  // Waking a worker takes about this long. While the latest loads took less on the whole, workers
  // begin none, and next() itself loads, without `patience` then.
  std::chrono::nanoseconds hand_over = std::chrono::microseconds(20);
};

// One pass over a list of batches. next() is for one thread. The destructor may run at any moment;
// it waits for the batches being loaded at that moment and for nothing else.
class Loader {
 public:
  // `dataset` must outlive the loader.
  Loader(const Dataset& dataset, std::vector<std::vector<int64_t>> batches,
         std::optional<uint64_t> augmentation_seed = {}, const LoaderOptions& options = {});
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, or nothing after the last. What Dataset::load threw for this batch is thrown
  // here, after which the batch counts as handed out; Error(timeout) when patience ran out, after
  // which the same batch may be waited for again.
  std::optional<Batch> next();

  // Batches in all, handed out or not.
  int64_t size() const { return static_cast<int64_t>(batches_.size()); }

 private:
  using Outcome = std::variant<std::monostate, Batch, std::exception_ptr>;

  Outcome load(size_t batch) const;
  void work(const std::stop_token& stop);
  Outcome take();
  Outcome load_unlocked(std::unique_lock<std::mutex>& lock, size_t batch);
  bool is_quick() const;

  const Dataset& dataset_;
  const std::vector<std::vector<int64_t>> batches_;
  const std::optional<uint64_t> augmentation_seed_;
  const LoaderOptions options_;

  std::mutex mutex_;
  std::condition_variable_any room_;   // there is room to load another batch, or stop
  std::condition_variable_any ready_;  // a batch has been loaded
  size_t started_ = 0;                 // batches whose load has begun
  size_t taken_ = 0;                   // batches handed out
  double saved_ = 0;                   // hand-overs, if next() had loaded all of late
  std::vector<Outcome> slots_;         // batch i waits in slot i modulo prefetch
  // Last, so that they are joined before anything they use is gone.
  std::vector<std::jthread> workers_;
};

}  // namespace troika::data
