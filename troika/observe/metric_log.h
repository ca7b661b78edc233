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

// How numbers of several steps, and with sync_dist of all ranks, become one. `mean` weighs them by
// their batch_size.
enum class LogReduction { mean, sum, min, max };

// The arguments of Lightning's self.log.
struct LogOptions {
  // Reduced over the steps since the last row, or over the epoch. Left out, training logs steps and
  // evaluation epochs. A name that does both appears as name_step and name_epoch.
  std::optional<bool> on_step = {};
  std::optional<bool> on_epoch = {};
  LogReduction reduce = LogReduction::mean;
  // Over all ranks, which must all log the name then. Else each rank has its own, and rank 0's is
  // what loggers get.
  bool sync_dist = false;
  // Other ranks' numbers are not even kept.
  bool rank_zero_only = false;
  bool prog_bar = false;
  // Samples the number stands for; left out, those of the batch.
  std::optional<int64_t> batch_size = {};

  bool operator==(const LogOptions&) const = default;
};

// The values of one row, in the order in which names were first logged.
struct LoggedRow {
  MetricValues values;
  MetricValues prog_bar;  // those of `values` that the progress bar shows too
  MetricValues common;    // those of `values` that are the same bits on all ranks
};

// One rank's. log() neither communicates nor waits for a device, and may be called by several
// threads; each of the two functions that end a row makes one exchange between the ranks, whatever
// was logged, so all ranks must call them alike.
//
// Unlike Lightning, whose step values are those of the last step, a row of steps covers all steps
// since the row before.
class MetricLog {
 public:
  enum class Phase { training, evaluation };

  MetricLog(comm::Group replicas, Phase phase);

  Phase phase() const { return phase_; }

  // `batch_size` is that of the next step's batch: the default weight of what it logs.
  void start_batch(int64_t batch_size) { batch_size_ = batch_size; }

  // `value` has one element of any number type, on any device. Throws Error for a name that is
  // empty or has control characters, for options that contradict each other or those the name was
  // logged with before, for on_step in evaluation, and for a batch_size below 1.
  void log(const std::string& name, const at::Tensor& value, const LogOptions& options = {});
  void log(const std::string& name, double value, const LogOptions& options = {});

  // Collective, blocking. What was logged on_step since the last call, or on_epoch since the last
  // end_epoch(), and forgets it. Numbers with sync_dist are the same bits on all ranks. A rank that
  // logged nothing, as it had no batch, is legal; ranks that logged different names with sync_dist
  // get an Error on all of them that says which.
  LoggedRow end_interval();
  LoggedRow end_epoch();
  // Forgets all that was logged, also which names.
  void clear() { entries_.clear(); }

  // All that was logged and is not forgotten, as bytes: for a checkpoint of this rank.
  at::Tensor state() const;
  // Adds what state() gave to what is here, as if it had been logged before.
  void add_state(const at::Tensor& state);

 private:
  // Sum of value * weight, or sum, least or greatest, in float64.
  struct Sum {
    std::optional<double> on_host;  // of numbers on the CPU
    at::Tensor on_device;           // of those elsewhere, where they are
    double weight = 0;              // of all; 0: nothing yet

    double total(LogReduction reduction) const;
  };
  struct Entry {
    std::string name;
    LogOptions options;  // on_step and on_epoch set, batch_size not
    Sum step, epoch;
  };

  LogOptions resolved(const std::string& name, const LogOptions& options) const;
  Entry& entry_for(const std::string& name, const LogOptions& options);
  template <typename Add>
  void add(const std::string& name, const LogOptions& options, Add add_to);
  LoggedRow end_row(Sum Entry::*sum);

  comm::Group replicas_;
  Phase phase_;
  int64_t batch_size_ = 1;
  mutable std::mutex mutex_;  // of entries_
  std::vector<Entry> entries_;
};

}  // namespace troika::observe
