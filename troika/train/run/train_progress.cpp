#include "troika/train/run/train_progress.h"

#include <string_view>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

constexpr std::string_view kMetric = "loops.metrics.";

// Calls `integer(name, field)` or `number(name, field)` for each field that is the same on all
// ranks.
template <typename L, typename Integer, typename Number>
void for_each_field(L& loops, Integer integer, Number number) {
  integer("loops.epoch", loops.epoch);
  integer("loops.position", loops.position);
  integer("loops.pass", loops.micro_batch);
  integer("loops.step", loops.step);
  integer("loops.rows", loops.rows);
  integer("loops.samples", loops.samples);
  integer("loops.ended_step", loops.ended_step);
  integer("loops.validating", loops.validating);
  number("loops.train_seconds", loops.train_seconds);
  number("loops.seconds", loops.seconds);
  number("loops.train_loss", loops.train_loss);
  number("loops.validation_loss", loops.validation_loss);
  number("loops.validation_accuracy", loops.validation_accuracy);
}

}  // namespace

checkpoint::NamedTensors TrainProgress::state() const {
  checkpoint::NamedTensors result;
  for_each_field(
      *this,
      [&](const char* name, int64_t field) {
        result.emplace_back(name, at::scalar_tensor(field, at::kLong));
      },
      [&](const char* name, double field) {
        result.emplace_back(name, at::scalar_tensor(field, at::kDouble));
      });
  for (const auto& [name, value] : metrics) {
    result.emplace_back(std::string(kMetric) + name, at::scalar_tensor(value, at::kDouble));
  }
  return result;
}

void TrainProgress::load_state(const std::map<std::string, at::Tensor>& state) {
  const auto find = [&](const char* name) -> const at::Tensor& {
    const auto found = state.find(name);
    if (found == state.end()) {
      throw Error("train", ErrorKind::usage,
                  {.what = "cannot resume", .got = std::string("a checkpoint without ") + name});
    }
    return found->second;
  };
  for_each_field(
      *this, [&](const char* name, int64_t& field) { field = find(name).item<int64_t>(); },
      [&](const char* name, double& field) { field = find(name).item<double>(); });
  metrics.clear();
  for (const auto& [name, value] : state) {
    if (name.starts_with(kMetric)) metrics[name.substr(kMetric.size())] = value.item<double>();
  }
}

}  // namespace troika::train
