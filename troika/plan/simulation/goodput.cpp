#include "troika/plan/simulation/goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/plan/errors/refuse.h"

namespace troika::plan {

namespace {

constexpr int64_t kFailures = 20'000;
constexpr int64_t kCheckpoints = 2'000'000;

void require(bool is_valid, const char* what, double got, const char* expected) {
  if (is_valid) return;
  refuse(what, fmt::format("{:g}", got), expected);
}

void require_valid(const FailureModel& model, const std::vector<double>& steps) {
  const auto is_time = [](double value) { return std::isfinite(value) && value >= 0; };
  require(model.mean_between_failures > 0, "mean time between failures",
          model.mean_between_failures, "seconds above 0");
  require(std::isfinite(model.shape) && model.shape > 0, "shape of times between failures",
          model.shape, "a number above 0");
  require(is_time(model.checkpoint_interval), "checkpoint interval", model.checkpoint_interval,
          "seconds from 0 on");
  require(is_time(model.checkpoint_seconds), "time of a checkpoint", model.checkpoint_seconds,
          "seconds from 0 on");
  require(is_time(model.restart_seconds), "time of a restart", model.restart_seconds,
          "seconds from 0 on");
  TROIKA_CHECK(!steps.empty(), "times of steps");
  for (const double step : steps) {
    require(std::isfinite(step) && step > 0, "time of a step", step, "seconds above 0");
  }
}

class Run {
 public:
  Run(const FailureModel& model, const std::vector<double>& steps)
      : model_(model), steps_(steps), random_(model.seed) {
    for (const double step : steps) ends_.push_back(ends_.back() + step);
    round_ = ends_.back();
    scale_ = model.mean_between_failures / std::tgamma(1 + 1 / model.shape);
    require(scale_ > 0, "shape of times between failures", model.shape,
            "a larger one: their typical time is 0");
    next_failure_ = draw();
  }

  Goodput simulate() {
    int64_t checkpoints = 0;
    while (found_.failures < kFailures && checkpoints < kCheckpoints) {
      const double work = segment();
      const double all = work + model_.checkpoint_seconds;
      if (next_failure_ - now_ < all) {
        fail();
        continue;
      }
      now_ += all;
      kept_ += work;
      first_ = after_;
      ++checkpoints;
    }
    found_.simulated_seconds = now_;
    found_.share = kept_ / now_;
    found_.checkpoint_share = static_cast<double>(checkpoints) * model_.checkpoint_seconds / now_;
    found_.restart_share = restarting_ / now_;
    found_.lost_share =
        std::max(0.0, 1 - found_.share - found_.checkpoint_share - found_.restart_share);
    add_expectations();
    return found_;
  }

 private:
  double draw() {
    if (std::isinf(scale_)) return scale_;
    // The logarithm is finite, as uniform() is less than 1.
    return now_ + scale_ * std::pow(-std::log(1 - random_.uniform()), 1 / model_.shape);
  }

  // Returns the time of the steps until the next checkpoint, and sets after_ to the step after it.
  double segment() {
    // Counts whole rounds of all steps, then searches for the first step of the round that ends
    // after the interval.
    const double due = model_.checkpoint_interval * (1 - kRounding);
    const double rounds = std::max(0.0, std::ceil(due / round_) - 1);
    const double goal = ends_[first_] + due - rounds * round_;
    const bool wraps = goal > ends_.back();
    const auto from = ends_.begin() + (wraps ? 1 : static_cast<int64_t>(first_) + 1);
    const auto last = std::min(std::lower_bound(from, ends_.end(), wraps ? goal - round_ : goal),
                               ends_.end() - 1);
    const auto steps = static_cast<int64_t>(steps_.size());
    const int64_t ended = last - ends_.begin() + (wraps ? steps : 0);
    after_ = static_cast<size_t>(ended % steps);
    found_.steps_between_checkpoints =
        static_cast<int64_t>(rounds) * steps + ended - static_cast<int64_t>(first_);
    return rounds * round_ + *last + (wraps ? round_ : 0) - ends_[first_];
  }

  // The run returns to its last checkpoint. A failure during the restart begins the restart anew.
  void fail() {
    while (found_.failures < kFailures) {
      now_ = next_failure_;
      ++found_.failures;
      next_failure_ = draw();
      const double restart = std::min(model_.restart_seconds, next_failure_ - now_);
      restarting_ += restart;
      if (restart < model_.restart_seconds) continue;
      now_ += restart;
      return;
    }
  }

  void add_expectations() {
    const double mean = model_.mean_between_failures;
    const double step = round_ / static_cast<double>(steps_.size());
    const double work = static_cast<double>(found_.steps_between_checkpoints) * step;
    const double all = work + model_.checkpoint_seconds;
    found_.best_interval = std::sqrt(2 * model_.checkpoint_seconds * mean);
    if (std::isinf(mean)) {
      found_.expected_share = work / all;
    } else if (model_.shape == 1) {
      found_.expected_share =
          work / (mean * std::exp(model_.restart_seconds / mean) * std::expm1(all / mean));
    }
  }

  static constexpr double kRounding = 1e-9;  // of sums of steps

  const FailureModel& model_;
  const std::vector<double>& steps_;
  Random random_;
  std::vector<double> ends_{0};  // sums of the first steps
  double round_ = 0;             // seconds of all steps
  double scale_ = 0;             // of the Weibull distribution
  double now_ = 0;
  double next_failure_ = 0;
  double kept_ = 0;               // seconds of steps
  double restarting_ = 0;         // seconds
  size_t first_ = 0, after_ = 0;  // steps after the last checkpoint, and after the next one
  Goodput found_;
};

}  // namespace

Goodput simulate_goodput(const FailureModel& model, const std::vector<double>& step_seconds) {
  require_valid(model, step_seconds);
  return Run(model, step_seconds).simulate();
}

}  // namespace troika::plan
