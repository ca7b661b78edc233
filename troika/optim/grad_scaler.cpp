#include "troika/optim/grad_scaler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::optim {

namespace {

[[noreturn]] void refuse(ErrorText text) {
  throw Error("optim", ErrorKind::usage, text);
}

void require_sensible(const GradScalerOptions& options) {
  const auto require = [](bool holds, const char* name, double value, const char* expected) {
    if (!holds) refuse({.what = name, .got = std::to_string(value), .expected = expected});
  };
  require(options.initial_scale > 0 && std::isfinite(options.initial_scale), "initial_scale",
          options.initial_scale, "a finite number > 0");
  require(options.growth_factor > 1, "growth_factor", options.growth_factor, "a number > 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
          options.backoff_factor, "a number between 0 and 1");
  require(options.growth_interval >= 1, "growth_interval",
          static_cast<double>(options.growth_interval), "an integer >= 1");
}

// Extremes carry infinities and NaN along; unlike isfinite(), they are found in one pass and
// without a copy.
bool has_overflowed(const at::Tensor& gradient) {
  if (gradient.numel() == 0) return false;
  const auto [least, most] = at::aminmax(gradient);
  return !std::isfinite(least.item<double>()) || !std::isfinite(most.item<double>());
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, Agree agree)
    : options_(options),
      agree_(std::move(agree)),
      scale_(static_cast<float>(options.initial_scale)) {
  require_sensible(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss * at::scalar_tensor(scale_, loss.options().dtype(at::kFloat));
}

void GradScaler::unscale(FlatOptimizer& optimizer) {
  if (!options_.enabled) return;
  const Stage stage = progress_[&optimizer].stage;
  if (stage == Stage::unscaled) {
    refuse({.what = "unscale() has already been called on this optimizer since the last update()"});
  }
  if (stage == Stage::stepped) refuse({.what = "unscale() is being called after step()"});

  const at::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(scale_));
  bool overflowed = false, any = false;
  for (const auto& parameter : optimizer.parameters().list()) {
    if (!parameter.tensor.grad().defined()) continue;
    // As an alias: one that a graph was made of (create_graph) must not be written to in place.
    const at::Tensor gradient = parameter.tensor.grad().detach();
    overflowed = has_overflowed(gradient) || overflowed;
    gradient.mul_(inverse);
    any = true;
  }
  if (agree_) overflowed = agree_(overflowed);
  if (!any) {
    progress_.erase(&optimizer);
    refuse({.what = "no parameter of this optimizer has a gradient",
            .hint = "call backward() on a scaled loss before unscale() or step()"});
  }
  progress_[&optimizer] = {Stage::unscaled, overflowed};
}

bool GradScaler::step(FlatOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (progress_[&optimizer].stage == Stage::stepped) {
    refuse({.what = "step() has already been called since the last update()"});
  }
  if (progress_[&optimizer].stage == Stage::ready) unscale(optimizer);
  Progress& progress = progress_[&optimizer];
  if (!progress.overflowed) optimizer.step();
  progress.stage = Stage::stepped;
  return !progress.overflowed;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  const auto was_checked = [](const auto& entry) { return entry.second.stage != Stage::ready; };
  if (std::none_of(progress_.begin(), progress_.end(), was_checked)) {
    refuse({.what = "no optimizer was unscaled or stepped since the last update()"});
  }
  const bool overflowed = std::any_of(progress_.begin(), progress_.end(),
                                      [](const auto& entry) { return entry.second.overflowed; });
  progress_.clear();
  // As at::_amp_update_scale_ computes: products in float64, the scale itself in float32.
  if (overflowed) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

NamedTensors GradScaler::state() const {
  if (!options_.enabled) return {};
  const auto number = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  return {{"scale", number(scale_)},
          {"growth_factor", number(options_.growth_factor)},
          {"backoff_factor", number(options_.backoff_factor)},
          {"growth_interval", number(static_cast<double>(options_.growth_interval))},
          {"_growth_tracker", number(static_cast<double>(growth_tracker_))}};
}

void GradScaler::load_state(const NamedTensors& state) {
  if (!options_.enabled) return;
  const auto find = [&](const std::string& name) {
    const auto found = std::find_if(state.begin(), state.end(),
                                    [&](const auto& item) { return item.first == name; });
    if (found == state.end()) {
      refuse({.what = "a state of the loss scaler is missing", .got = "none", .expected = name});
    }
    return found->second.item<double>();
  };
  GradScalerOptions options = options_;
  options.initial_scale = find("scale");
  options.growth_factor = find("growth_factor");
  options.backoff_factor = find("backoff_factor");
  options.growth_interval = static_cast<int64_t>(find("growth_interval"));
  const auto tracker = static_cast<int64_t>(find("_growth_tracker"));
  require_sensible(options);
  if (state.size() > this->state().size()) {
    refuse({.what = "the loss scaler has no such state", .got = state.back().first});
  }
  options_ = options;
  scale_ = static_cast<float>(options.initial_scale);
  growth_tracker_ = tracker;
}

}  // namespace troika::optim
