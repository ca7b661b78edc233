#include "troika/train/loops.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// Calls `integer(name, field)` or `number(name, field)` for every field that all ranks share.
template <typename L, typename Integer, typename Number>
void for_each_field(L& loops, Integer integer, Number number) {
  integer("loops.epoch", loops.epoch);
  integer("loops.position", loops.position);
  integer("loops.pass", loops.pass);
  integer("loops.step", loops.step);
  integer("loops.samples", loops.samples);
  integer("loops.epochs", loops.epochs);
  number("loops.train_seconds", loops.train_seconds);
  number("loops.train_loss", loops.train_loss);
  number("loops.validation_loss", loops.validation_loss);
  number("loops.validation_accuracy", loops.validation_accuracy);
}

}  // namespace

NamedTensors Loops::state() const {
  NamedTensors result;
  for_each_field(
      *this,
      [&](const char* name, int64_t field) {
        result.emplace_back(name, at::scalar_tensor(field, at::kLong));
      },
      [&](const char* name, double field) {
        result.emplace_back(name, at::scalar_tensor(field, at::kDouble));
      });
  result.emplace_back("sums.epoch_loss", epoch_loss.state().front());
  result.emplace_back("sums.interval_loss", interval_loss.state().front());
  return result;
}

void Loops::load_state(const std::map<std::string, at::Tensor>& state) {
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
  epoch_loss.load_state({find("sums.epoch_loss")});
  interval_loss.load_state({find("sums.interval_loss")});
}

}  // namespace troika::train
