#include "troika/compat/loss_watch.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <utility>

namespace troika::compat {

namespace {

constexpr std::string_view kSpace = "aten::";
constexpr std::array<std::string_view, 5> kLosses{"aten::mse_loss", "aten::l1_loss",
                                                  "aten::smooth_l1_loss", "aten::huber_loss",
                                                  "aten::binary_cross_entropy_with_logits"};

}  // namespace

struct LossWatch::Target {
  explicit Target(Take given) : take(std::move(given)), former(std::exchange(current, this)) {}
  ~Target() {
    at::removeCallback(handle);
    current = former;
  }

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (!current || std::find(kLosses.begin(), kLosses.end(), name) == kLosses.end()) return {};
    const auto inputs = call.inputs();
    const auto &input = inputs[0].toTensor(), &target = inputs[1].toTensor();
    if (input.sizes() != target.sizes()) {
      current->take(name.substr(kSpace.size()), input.sizes(), target.sizes());
    }
    return {};
  }

  const Take take;
  Target* const former;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&Target::start)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));

  static thread_local Target* current;  // the innermost watch
};

thread_local LossWatch::Target* LossWatch::Target::current = nullptr;

LossWatch::LossWatch(Take take) : target_(std::make_unique<Target>(std::move(take))) {}

LossWatch::~LossWatch() = default;

}  // namespace troika::compat
