// Wall times of a call of Trainer::fit().
#pragma once

#include <cstdint>
#include <utility>

#include "troika/base/clock.h"
#include "troika/observe/summary.h"

namespace troika::train {

// All times are in seconds of the host; on a GPU, queued work may not be done yet. Not thread-safe.
class FitClock {
 public:
  // Returns the seconds since the call began.
  double call_seconds() const { return call_.seconds(); }
  // Returns the seconds since the start of the run, including the calls from which it resumed.
  double run_seconds() const { return earlier_ + call_.seconds(); }
  void go_on_from(double run_seconds) { earlier_ = run_seconds; }

  // Called when training begins (at an epoch) or continues (after a validation). `train_seconds` is
  // the training time so far.
  void start_training(double train_seconds) {
    trained_ = train_seconds;
    training_.restart();
    step_ = 0;
    start_interval();
  }
  double train_seconds() const { return trained_ + training_.seconds(); }

  void start_batch() { batch_.restart(); }
  // `samples` is summed over all ranks.
  void end_batch(int64_t samples) {
    step_ += batch_.seconds();
    batch_.restart();  // counts the time of micro-batches that started together once
    interval_samples_ += samples;
  }
  void end_step() { step_milliseconds_.add(std::exchange(step_, 0) * 1e3); }
  // The time of a step is the sum of its micro-batches' times, without waiting for data. NaN before
  // the first step.
  double median_step_milliseconds() const { return step_milliseconds_.value(); }

  // Starts an interval, which ends with the next row of the log.
  void start_interval() {
    interval_.restart();
    interval_samples_ = 0;
  }
  double samples_per_second() const {
    return static_cast<double>(interval_samples_) / interval_.seconds();
  }

 private:
  const Stopwatch call_;
  double earlier_ = 0;
  Stopwatch training_;
  double trained_ = 0;  // the training time when training_ was started
  Stopwatch batch_;
  double step_ = 0;  // time of the current step's micro-batches so far
  observe::Median step_milliseconds_;
  Stopwatch interval_;
  int64_t interval_samples_ = 0;
};

}  // namespace troika::train
