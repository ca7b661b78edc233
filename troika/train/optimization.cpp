#include "troika/train/optimization.h"

#include <utility>

#include "troika/compat/torch.h"

namespace troika::train {

Optimization::Optimization(const nn::Precision& precision, std::vector<optim::Parameter> parameters,
                           const optim::OptimizerOptions& options) {
  if (precision.needs_masters()) {
    masters_.emplace(std::move(parameters));
    parameters = masters_->list();
  }
  // An overflow is in the mean of all ranks' gradients, so they need not talk of it.
  if (precision.needs_scaler()) scaler_.emplace();
  optimizer_ = optim::make_optimizer(std::move(parameters), options);
}

at::Tensor Optimization::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Optimization::step() {
  if (masters_) masters_->take_gradients();
  if (!scaler_) {
    optimizer_->step();
  } else {
    skipped_ += !scaler_->step(*optimizer_);
    scaler_->update();
  }
  if (masters_) masters_->give_weights();
}

std::optional<double> Optimization::loss_scale() const {
  if (!scaler_) return std::nullopt;
  return scaler_->scale();
}

optim::NamedTensors Optimization::masters() const {
  optim::NamedTensors result;
  if (!masters_) return result;
  for (const auto& master : masters_->list()) result.emplace_back(master.name, master.tensor);
  return result;
}

}  // namespace troika::train
