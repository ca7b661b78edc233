#include "troika/optim/grad_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/compute_threads.h"

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

// Multiplies `count` numbers, and returns whether one of them was infinite or NaN before (all bits
// of its exponent are set).
template <typename Number, typename Bits>
bool scale_span(Number* numbers, int64_t count, Number factor, Bits exponent) {
  Bits most = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, std::bit_cast<Bits>(numbers[i]) & exponent);
    numbers[i] *= factor;
  }
  return most == exponent;
}

// The same for a gradient in host memory, in one pass over the memory.
bool scale_checked(const at::Tensor& gradient, float factor) {
  const auto type = gradient.scalar_type();
  if (!gradient.is_non_overlapping_and_dense() || (type != at::kFloat && type != at::kDouble)) {
    const bool overflowed = !gradient.isfinite().all().item<bool>();
    gradient.mul_(factor);
    return overflowed;
  }
  std::atomic<bool> overflowed = false;
  compat::parallel_for(0, gradient.numel(), kAtOnce, [&](int64_t begin, int64_t end) {
    const auto scale = [&](auto* numbers, auto exponent) {
      using Number = std::remove_pointer_t<decltype(numbers)>;
      if (scale_span(numbers + begin, end - begin, Number(factor), exponent)) overflowed = true;
    };
    if (type == at::kDouble) {
      scale(static_cast<double*>(gradient.data_ptr()), uint64_t{0x7ff} << 52);
    } else {
      scale(static_cast<float*>(gradient.data_ptr()), uint32_t{0xff} << 23);
    }
  });
  // Marks the in-place write, for graphs that saved the gradient.
  gradient.unsafeGetTensorImpl()->bump_version();
  return overflowed;
}

// The same for gradients on a device; the host waits for the device once.
bool scale_checked(const std::vector<at::Tensor>& gradients, float factor) {
  const auto options = gradients.front().options().dtype(at::kFloat).requires_grad(false);
  at::Tensor overflowed = at::zeros({1}, options);
  if (gradients.front().is_cuda()) {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, overflowed,
                                                   at::full({1}, factor, options));
  } else {
    for (const auto& gradient : gradients) {
      overflowed.add_(gradient.isfinite().all().logical_not());
      gradient.mul_(factor);
    }
  }
  return overflowed.item<float>() > 0;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, FlagReduction any_rank)
    : options_(options),
      any_rank_(std::move(any_rank)),
      scale_(static_cast<float>(options.initial_scale)) {
  require_sensible(options_);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss * at::scalar_tensor(scale_, loss.options().dtype(at::kFloat));
}

void GradScaler::unscale(FlatOptimizer& optimizer) {
  if (!options_.enabled) return;
  const State state = progress_[&optimizer].state;
  if (state == State::unscaled) {
    refuse({.what = "unscale() has already been called on this optimizer since the last update()"});
  }
  if (state == State::stepped) refuse({.what = "unscale() is being called after step()"});

  const at::NoGradGuard no_grad;
  const auto inverse = static_cast<float>(1.0 / static_cast<double>(scale_));
  bool overflowed = false, any = false;
  std::vector<at::Tensor> on_device;
  for (const auto& parameter : optimizer.parameters().list()) {
    const at::Tensor gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    any = true;
    if (gradient.is_cpu()) {
      overflowed = scale_checked(gradient, inverse) || overflowed;
    } else {
      on_device.push_back(gradient);
    }
  }
  if (!on_device.empty()) overflowed = scale_checked(on_device, inverse);
  if (any_rank_) overflowed = any_rank_(overflowed);
  if (!any && !optimizer.parameters().list().empty()) {
    progress_.erase(&optimizer);
    refuse({.what = "no parameter of this optimizer has a gradient",
            .hint = "call backward() on a scaled loss before unscale() or step()"});
  }
  progress_[&optimizer] = {State::unscaled, overflowed};
}

bool GradScaler::step(FlatOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (progress_[&optimizer].state == State::stepped) {
    refuse({.what = "step() has already been called since the last update()"});
  }
  if (progress_[&optimizer].state == State::ready) unscale(optimizer);
  Progress& progress = progress_[&optimizer];
  if (!progress.overflowed) optimizer.step();
  progress.state = State::stepped;
  return !progress.overflowed;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  const auto was_checked = [](const auto& entry) { return entry.second.state != State::ready; };
  if (std::none_of(progress_.begin(), progress_.end(), was_checked)) {
    refuse({.what = "no optimizer was unscaled or stepped since the last update()"});
  }
  const bool overflowed = std::any_of(progress_.begin(), progress_.end(),
                                      [](const auto& entry) { return entry.second.overflowed; });
  progress_.clear();
  // Computes as at::_amp_update_scale_: products in float64, the scale in float32.
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
