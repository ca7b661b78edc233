// Batches loaded ahead by worker threads, returned in order.
#pragma once

#include <c10/core/DeviceType.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>

#include "troika/base/clock.h"
#include "troika/data/dataset.h"

namespace troika::data {

struct LoaderOptions {
  int workers = 1;   // threads; 0: next() loads. Results do not depend on it.
  int prefetch = 4;  // batches loaded or being loaded ahead of next(); >= 1
  // The type of device that trains on the batches. Unless it is the CPU, batches are copied to
  // memory from which that device copies asynchronously (Batch::is_staged), by the thread that
  // loads them.
  c10::DeviceType device = c10::DeviceType::CPU;
  // How long next() waits for a worker; data may be on a file system that hangs.
  Milliseconds patience = std::chrono::minutes(5);
  // The approximate time to wake a worker. While recent loads took less than this on average,
  // workers start no loads; next() loads by itself, without the limit `patience`.
  std::chrono::nanoseconds hand_over = std::chrono::microseconds(20);
};

// Iterates once over a list of batches. next() must be called from one thread. The destructor may
// run at any time; it waits only for the batches being loaded at that time.
class Loader {
 public:
  // `dataset` must outlive the loader.
  Loader(const Dataset& dataset, std::vector<std::vector<int64_t>> batches,
         std::optional<uint64_t> augmentation_seed = {}, const LoaderOptions& options = {});
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next batch, or nothing after the last. Rethrows the error of Dataset::load for this
  // batch; the batch then counts as returned. Throws Error(timeout) if `patience` ran out; the next
  // call waits for the same batch again.
  std::optional<Batch> next();

  // Returns the total number of batches, returned or not.
  int64_t size() const { return static_cast<int64_t>(batches_.size()); }

 private:
  // The batch, or why it was not loaded; neither while no load has ended.
  struct Outcome {
    std::optional<Batch> batch = std::nullopt;
    std::exception_ptr problem = nullptr;

    bool is_there() const { return batch || problem; }
  };

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
  std::condition_variable_any room_;   // another batch may be loaded, or the loader stops
  std::condition_variable_any ready_;  // a batch has been loaded
  size_t started_ = 0;                 // batches whose load has begun
  size_t taken_ = 0;                   // batches returned
  double saved_ = 0;                   // hand-overs recently saved by loading in next()
  std::vector<Outcome> slots_;         // batch i waits in slot i modulo prefetch
  // Last, so that they are joined before the members that they use are destroyed.
  std::vector<std::jthread> workers_;
};

}  // namespace troika::data
