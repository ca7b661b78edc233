#include "troika/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/staging.h"

namespace troika::data {

namespace {

// In units of hand_over. Large enough that a data set with occasional disk reads stays with the
// workers.
constexpr double kEnough = 64;

void stage(Batch& batch, c10::DeviceType device) {
  const auto copy = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = compat::staged_for(device, tensor);
  };
  copy(batch.inputs);
  copy(batch.targets);
  for (auto& [name, tensor] : batch.named) copy(tensor);
  batch.is_staged = true;
}

}  // namespace

Loader::Loader(const Dataset& dataset, std::vector<std::vector<int64_t>> batches,
               std::optional<uint64_t> augmentation_seed, const LoaderOptions& options)
    : dataset_(dataset),
      batches_(std::move(batches)),
      augmentation_seed_(augmentation_seed),
      options_(options) {
  const auto check = [](const char* what, int got, int least) {
    if (got >= least) return;
    throw Error(
        "data", ErrorKind::usage,
        {.what = what, .got = std::to_string(got), .expected = fmt::format(">= {}", least)});
  };
  check("loader workers", options.workers, 0);
  check("loader prefetch", options.prefetch, 1);
  slots_.resize(static_cast<size_t>(options.prefetch));
  for (int i = 0; i < options.workers; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

std::optional<Batch> Loader::next() {
  if (taken_ == batches_.size()) return std::nullopt;
  Outcome outcome;
  if (workers_.empty()) {
    outcome = load(taken_++);
  } else {
    outcome = take();
  }
  if (outcome.problem) std::rethrow_exception(outcome.problem);
  return std::move(outcome.batch);
}

Loader::Outcome Loader::load(size_t batch) const {
  try {
    auto loaded = dataset_.load(batches_[batch], augmentation_seed_);
    const auto samples = static_cast<int64_t>(batches_[batch].size());
    if (loaded.size() == samples) {
      if (loaded.samples.empty()) loaded.samples = batches_[batch];
      if (options_.device != c10::DeviceType::CPU) stage(loaded, options_.device);
      return {.batch = std::move(loaded)};
    }
    throw Error("data", ErrorKind::usage,
                {.what = "a data set loaded a batch of another size than asked for",
                 .got = fmt::format("{} samples", loaded.size()),
                 .expected = std::to_string(samples)});
  } catch (...) {
    return {.problem = std::current_exception()};
  }
}

void Loader::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (true) {
    // While loads are quick, the caller loads the next batch; otherwise it would wait for a worker
    // for each batch.
    room_.wait(lock, stop, [&] {
      return started_ == batches_.size() || (!is_quick() && started_ < taken_ + slots_.size());
    });
    if (stop.stop_requested() || started_ == batches_.size()) return;
    const size_t batch = started_++;
    Outcome outcome = load_unlocked(lock, batch);
    slots_[batch % slots_.size()] = std::move(outcome);
    ready_.notify_one();
  }
}

Loader::Outcome Loader::load_unlocked(std::unique_lock<std::mutex>& lock, size_t batch) {
  lock.unlock();
  const auto start = Clock::now();
  Outcome outcome = load(batch);
  const std::chrono::duration<double> taken = Clock::now() - start;
  lock.lock();
  const std::chrono::duration<double> hand_over = options_.hand_over;
  saved_ = std::clamp(saved_ + 1 - taken / hand_over, 0.0, 2 * kEnough);
  return outcome;
}

bool Loader::is_quick() const {
  return saved_ >= kEnough;
}

Loader::Outcome Loader::take() {
  std::unique_lock lock(mutex_);
  Outcome outcome;
  if (is_quick() && started_ == taken_) {
    outcome = load_unlocked(lock, started_++);
  } else {
    Outcome& slot = slots_[taken_ % slots_.size()];
    if (!ready_.wait_for(lock, options_.patience, [&] { return slot.is_there(); })) {
      throw Error("data", ErrorKind::timeout,
                  {.what = fmt::format("batch {} of {} is not loaded", taken_, batches_.size()),
                   .got = fmt::format("nothing in {} ms", options_.patience.count()),
                   .hint = "is the data on a file system that hangs?"});
    }
    outcome = std::exchange(slot, {});
  }
  ++taken_;
  if (!is_quick()) room_.notify_all();
  return outcome;
}

}  // namespace troika::data
