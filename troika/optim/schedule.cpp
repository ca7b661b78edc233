#include "troika/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::optim {

namespace {

double cosine(double progress, double final_factor) {
  const double half = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
  return final_factor + (1.0 - final_factor) * half;
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"constant", "cosine"};
  return names;
}

Schedule make_schedule(const ScheduleOptions& options, int64_t total_steps) {
  const auto& names = schedule_names();
  if (std::find(names.begin(), names.end(), options.name) == names.end()) {
    throw Error("optim", ErrorKind::usage,
                {.what = "unknown learning-rate schedule",
                 .got = options.name,
                 .hint = "did you mean " + nearest(options.name, names) + "?"});
  }
  const auto rising = static_cast<double>(options.warmup_steps);
  const auto falling = std::max(1.0, static_cast<double>(total_steps) - rising);
  return [=, name = options.name, final_factor = options.final_factor](int64_t step) {
    const auto now = static_cast<double>(step);
    if (now < rising) return (now + 1.0) / rising;
    return name == "constant" ? 1.0 : cosine((now - rising) / falling, final_factor);
  };
}

}  // namespace troika::optim
