#include "troika/parallel/warm_up.h"

#include <string_view>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

constexpr const char* kSteps = "warm_up";
constexpr std::string_view kSynchronous = "synchronous.";

}  // namespace

WarmUp::WarmUp(torch::nn::Module& module, comm::Group group, int64_t steps,
               const DataParallelOptions& options, Make then)
    : module_(module),
      group_(std::move(group)),
      length_(steps),
      options_(options),
      make_(std::move(then)),
      synchronous_(std::make_unique<DataParallel>(module_, group_, options_)) {
  TROIKA_CHECK(steps > 0, "a warm-up has steps");
}

void WarmUp::step_by(const std::function<void()>& update) {
  now().step_by(update);
  if (!synchronous_ || ++steps_ < length_) return;
  synchronous_->synchronize_replicas();
  synchronous_.reset();
  then_ = make_();
}

optim::NamedTensors WarmUp::state() const {
  optim::NamedTensors result{{kSteps, at::scalar_tensor(steps_, at::kLong)}};
  for (const auto& [name, tensor] : now().state()) {
    result.emplace_back(synchronous_ ? std::string(kSynchronous) + name : name, tensor);
  }
  return result;
}

// The other exchange makes all ranks' modules equal when it is made, or requires that; in the
// middle of its rounds they differ.
void WarmUp::make_beside_values() {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (const auto& tensors : {module_.parameters(), module_.buffers()}) {
    for (const auto& tensor : tensors) kept.emplace_back(tensor, tensor.clone());
  }
  make_same(group_, module_, /*copy_state=*/true);
  then_ = make_();
  for (auto& [tensor, value] : kept) tensor.copy_(value);
}

void WarmUp::load_state(const optim::NamedTensors& state) {
  int64_t steps = -1;
  optim::NamedTensors synchronous, rest;
  for (const auto& [name, tensor] : state) {
    if (name == kSteps) {
      steps = tensor.item<int64_t>();
    } else if (name.starts_with(kSynchronous)) {
      synchronous.emplace_back(name.substr(kSynchronous.size()), tensor);
    } else {
      rest.emplace_back(name, tensor);
    }
  }
  if (steps < 0) refuse_state(std::string("no ") + kSteps);
  if (steps > length_) refuse_state(kSteps);
  const bool is_over = steps == length_;
  if (is_over && !synchronous.empty()) {
    refuse_state(std::string(kSynchronous) + synchronous.front().first);
  }
  if (!is_over && !rest.empty()) refuse_state(rest.front().first);
  synchronous_.reset();
  then_.reset();
  if (is_over) {
    make_beside_values();
  } else {
    synchronous_ = std::make_unique<DataParallel>(module_, group_, options_);
  }
  now().load_state(is_over ? rest : synchronous);
  steps_ = steps;
}

}  // namespace troika::parallel
