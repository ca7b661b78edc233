#include "troika/train/callbacks/early_stopping.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : options_(options), monitor_(options.monitor, options.mode), best_(monitor_.worst()) {}

void EarlyStopping::on_validation_end(FitContext& context) {
  validated_ = true;
  look_at(context);
}

void EarlyStopping::on_train_epoch_end(FitContext& context) {
  look_at(context);
  const bool complete = std::exchange(validated_, false);
  if (options_.strict && complete && !found_) {
    refuse_monitor(name(), monitor_.name, context.at.metrics);
  }
}

void EarlyStopping::look_at(FitContext& context) {
  for (const auto& [name, value] : context.row) {
    if (name != monitor_.name) continue;
    found_ = true;
    const std::string reason = judge(value);
    if (!reason.empty()) context.ask_to_stop("early stopping: " + reason);
  }
}

std::string EarlyStopping::judge(double value) {
  if (options_.check_finite && !std::isfinite(value)) {
    return fmt::format("{} is {}", monitor_.name, value);
  }
  if (monitor_.is_better(value, options_.stopping_threshold)) {
    return fmt::format("{} is {:.6g}, better than {:.6g}", monitor_.name, value,
                       options_.stopping_threshold);
  }
  if (monitor_.is_better(options_.divergence_threshold, value)) {
    return fmt::format("{} is {:.6g}, worse than {:.6g}", monitor_.name, value,
                       options_.divergence_threshold);
  }
  const double least_gain = monitor_.is_max ? -options_.min_delta : options_.min_delta;
  if (monitor_.is_better(value + least_gain, best_)) {
    best_ = value;
    waited_ = 0;
    return {};
  }
  if (++waited_ < options_.patience) return {};
  return fmt::format("{} was not better than {:.6g} for {} times", monitor_.name, best_, waited_);
}

checkpoint::NamedTensors EarlyStopping::state() const {
  return {{"best", at::scalar_tensor(best_, at::kDouble)},
          {"waited", at::scalar_tensor(waited_, at::kLong)},
          {"validated", at::scalar_tensor(int64_t{validated_}, at::kLong)},
          {"found", at::scalar_tensor(int64_t{found_}, at::kLong)}};
}

void EarlyStopping::load_state(const checkpoint::CheckpointReader& saved,
                               const std::string& prefix) {
  best_ = saved.read(prefix + "best").item<double>();
  waited_ = saved.read(prefix + "waited").item<int64_t>();
  validated_ = saved.read(prefix + "validated").item<int64_t>() != 0;
  found_ = saved.read(prefix + "found").item<int64_t>() != 0;
}

}  // namespace troika::train
