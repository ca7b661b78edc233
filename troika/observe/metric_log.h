// The log of a task's steps: numbers by name, reduced over steps and ranks until a row is due.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// The reduction of a number over steps and, with sync_dist, over all ranks. `mean` is weighted by
// batch_size.
enum class LogReduction { mean, sum, min, max };

// The arguments of Lightning's self.log.
struct LogOptions {
  // Reduces over the steps since the last row (on_step) or over the epoch (on_epoch). By default,
  // training uses on_step and evaluation on_epoch. A name that uses both appears as name_step and
  // name_epoch.
  std::optional<bool> on_step = {};
  std::optional<bool> on_epoch = {};
  LogReduction reduce = LogReduction::mean;
  // Reduces over all ranks, all of which must log the name. Otherwise each rank has its own value,
  // and loggers get that of rank 0.
  bool sync_dist = false;
  // The numbers of other ranks are dropped.
  bool rank_zero_only = false;
  bool prog_bar = false;
  // The number of samples that the number represents; by default, those of the batch.
  std::optional<int64_t> batch_size = {};

  bool operator==(const LogOptions&) const = default;
};

// The values of one row, in the order of first logging.
struct LoggedRow {
  MetricValues values;
  MetricValues prog_bar;  // the subset shown in the progress bar
  MetricValues common;    // the subset that is bitwise the same on all ranks
};

// The log of one rank. log() neither communicates nor waits for a device, and is thread-safe.
// end_interval() and end_epoch() each communicate once, whatever was logged, so all ranks must call
// them alike.
//
// A row of steps covers all steps since the previous row. Lightning instead takes the values of the
// last step.
class MetricLog {
 public:
  enum class Phase { training, evaluation };

  // `counts`: whether the numbers that this rank logs with sync_dist are used. If only some ranks
  // compute the model's outputs, the numbers of the others are dropped.
  MetricLog(comm::Group replicas, Phase phase, bool counts = true);

  Phase phase() const { return phase_; }

  // `batch_size` is the default weight of numbers logged in the next step.
  void start_batch(int64_t batch_size) { batch_size_ = batch_size; }

  // `value` has one element of any number type, on any device. Throws Error for a name that is
  // empty or has control characters, for options that contradict each other or the name's earlier
  // options, for on_step in evaluation, and for a batch_size below 1.
  void log(const std::string& name, const at::Tensor& value, const LogOptions& options = {});
  void log(const std::string& name, double value, const LogOptions& options = {});

  // Return and forget the numbers logged with on_step since the last end_interval(), or with
  // on_epoch since the last end_epoch(). Collective; block. Numbers with sync_dist are bitwise the
  // same on all ranks. A rank may have logged nothing because it had no batch. If ranks have logged
  // different names with sync_dist, all ranks get an Error that lists the differences.
  LoggedRow end_interval();
  LoggedRow end_epoch();
  // Forgets all logged numbers and names.
  void clear() { entries_.clear(); }

  // Returns all numbers that are not forgotten, as bytes, for a checkpoint of this rank.
  at::Tensor state() const;
  // Adds the numbers of state() to the current ones, as if they had been logged before.
  void add_state(const at::Tensor& state);

 private:
  // The sum of value * weight, or the sum, minimum or maximum, in float64.
  struct Sum {
    std::optional<double> on_host;  // from CPU tensors
    at::Tensor on_device;           // from tensors on other devices, kept there
    double weight = 0;              // of all numbers; 0: no number yet

    double total(LogReduction reduction) const;
  };
  struct Entry {
    std::string name;
    LogOptions options;  // on_step and on_epoch are set, batch_size is not
    Sum step, epoch;
  };

  LogOptions resolved(const std::string& name, const LogOptions& options) const;
  Entry& entry_for(const std::string& name, const LogOptions& options);
  template <typename Add>
  void add(const std::string& name, const LogOptions& options, Add add_to);
  LoggedRow end_row(Sum Entry::*sum);

  comm::Group replicas_;
  Phase phase_;
  bool counts_;
  int64_t batch_size_ = 1;
  mutable std::mutex mutex_;  // guards entries_
  std::vector<Entry> entries_;
};

}  // namespace troika::observe
