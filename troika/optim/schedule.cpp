#include "troika/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::optim {

namespace {

// Returns half a cosine from `from` at progress 0 to `to` at progress 1.
double cosine(double from, double to, double progress) {
  const double half = 0.5 * (1.0 + std::cos(std::numbers::pi * std::clamp(progress, 0.0, 1.0)));
  return to + (from - to) * half;
}

void require_known(const std::string& what, const std::string& name,
                   const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw Error("optim", ErrorKind::usage,
              {.what = "unknown " + what,
               .got = name,
               .hint = "did you mean " + nearest(name, names) + "?"});
}

void require_sensible(const ScheduleOptions& options) {
  require_known("learning-rate schedule", options.name, schedule_names());
  require_known("scaling of the learning rate", options.scaling, scaling_names());
  if (options.name == "one_cycle" && options.warmup_steps > 0) {
    throw Error("optim", ErrorKind::usage,
                {.what = "one_cycle has its own warm-up",
                 .got = std::to_string(options.warmup_steps) + " warm-up steps",
                 .expected = "0",
                 .hint = "rise_fraction says how long it rises"});
  }
  if (options.name == "step" && options.step_size < 1) {
    throw Error(
        "optim", ErrorKind::usage,
        {.what = "step_size", .got = std::to_string(options.step_size), .expected = ">= 1"});
  }
  const auto& stones = options.milestones;
  if (options.name == "multi_step" &&
      (stones.empty() || !std::is_sorted(stones.begin(), stones.end()))) {
    throw Error("optim", ErrorKind::usage,
                {.what = "milestones of multi_step",
                 .got = stones.empty() ? "none" : "descending ones",
                 .expected = "at least one step, in ascending order"});
  }
}

double scale(const ScheduleOptions& options, const RunLength& run) {
  if (options.scaling == "none") return 1.0;
  TROIKA_CHECK(run.global_batch > 0 && options.reference_batch > 0, "scaling needs batch sizes");
  const double times =
      static_cast<double>(run.global_batch) / static_cast<double>(options.reference_batch);
  return options.scaling == "linear" ? times : std::sqrt(times);
}

double one_cycle(const ScheduleOptions& options, double step, double steps) {
  const double top = std::max(1.0, options.rise_fraction * steps - 1);
  if (step <= top) return cosine(options.start_factor, 1.0, step / top);
  return cosine(1.0, options.final_factor, (step - top) / std::max(1.0, steps - 1 - top));
}

// Returns the factor without warm-up and scaling.
double course(const ScheduleOptions& options, int64_t step, const RunLength& run) {
  const auto now = static_cast<double>(step), steps = static_cast<double>(run.steps);
  const auto rising = static_cast<double>(options.warmup_steps);
  const double progress = std::min(1.0, (now - rising) / std::max(1.0, steps - rising));
  if (options.name == "step") {
    return std::pow(options.gamma, static_cast<double>(step / options.step_size));
  }
  if (options.name == "multi_step") {
    const auto& stones = options.milestones;
    const auto passed = std::upper_bound(stones.begin(), stones.end(), step) - stones.begin();
    return std::pow(options.gamma, static_cast<double>(passed));
  }
  if (options.name == "cosine") return cosine(1.0, options.final_factor, progress);
  if (options.name == "polynomial") {
    return options.final_factor +
           (1.0 - options.final_factor) * std::pow(1.0 - progress, options.power);
  }
  if (options.name == "one_cycle") return one_cycle(options, now, steps);
  return 1.0;
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"constant",   "step",      "multi_step", "cosine",
                                              "polynomial", "one_cycle", "plateau"};
  return names;
}

const std::vector<std::string>& scaling_names() {
  static const std::vector<std::string> names{"none", "linear", "square_root"};
  return names;
}

Schedule make_schedule(const ScheduleOptions& options, const RunLength& run) {
  require_sensible(options);
  const double top = scale(options, run);
  const double bottom = options.scaling == "none" ? 0.0 : std::min(1.0, top);
  return [=](int64_t step) {
    if (step < options.warmup_steps) {
      const double risen =
          static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
      return bottom + (top - bottom) * risen;
    }
    return top * course(options, step, run);
  };
}

}  // namespace troika::optim
