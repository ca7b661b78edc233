#include "troika/train/optimization.h"

#include <algorithm>
#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

const std::string kSkipped = "skipped";
const std::string kRate = "rate";
const std::string kStates = "state.";
const std::string kScaler = "scaler.";
const std::string kMaster = ".master";

bool is_on_host(const std::vector<optim::Parameter>& parameters) {
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const auto& parameter) { return parameter.tensor.is_cpu(); });
}

// Those of room optim step pieces; see Exchange::complete_sums().
void require_steppable(const parallel::Exchange& exchange, const OptimizerRecipe& recipe) {
  if (exchange.shards().empty() || !recipe.make || recipe.is_element_wise) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a strategy that shares parameters out among ranks",
               .got = "optimizer of configure_optimizers(), which needs whole ones",
               .expected = "one of optim.name, or one that treats each element by itself"});
}

}  // namespace

Optimization::Optimization(const nn::Precision& precision, const torch::nn::Module& module,
                           parallel::Exchange& exchange, const OptimizerRecipe& recipe)
    : Optimization(precision, exchange.parameters(module), recipe,
                   [&exchange](bool here) { return exchange.any(here); }) {
  require_steppable(exchange, recipe);
  optimizer_->complete_sums_by(
      [&exchange](const at::Tensor& sums) { exchange.complete_sums(sums); });
}

Optimization::Optimization(const nn::Precision& precision, std::vector<optim::Parameter> parameters,
                           const OptimizerRecipe& recipe, optim::GradScaler::Agree agree) {
  if (precision.needs_masters() || !is_on_host(parameters)) {
    masters_.emplace(std::move(parameters));
    parameters = masters_->list();
  }
  if (precision.needs_scaler()) scaler_.emplace(optim::GradScalerOptions{}, std::move(agree));
  parameters_ = parameters;
  optimizer_ = make_optimizer(recipe, std::move(parameters));
}

at::Tensor Optimization::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Optimization::take_gradients() {
  if (std::exchange(taken_, true)) return;
  if (masters_) masters_->take_gradients();
  if (scaler_) scaler_->unscale(*optimizer_);
}

void Optimization::clip(parallel::Exchange& exchange, double bound, const std::string& by) {
  if (bound == 0) return;
  if (by == "norm") {
    // Scales are powers of two: this is the clipping of the unscaled gradients, to the bit.
    exchange.clip_grad_norm(bound * loss_scale().value_or(1));
    return;
  }
  take_gradients();
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.grad().clamp_(-bound, bound);
  }
}

void Optimization::step(parallel::Exchange& exchange) {
  exchange.step_by([this] { update(); });
}

void Optimization::update() {
  take_gradients();
  taken_ = false;
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

optim::NamedTensors Optimization::masters(const parallel::Exchange& exchange) const {
  if (!masters_) return {};
  optim::NamedTensors pieces;
  for (const auto& master : masters_->list()) {
    pieces.emplace_back(master.name + kMaster, master.tensor);
  }
  auto result = exchange.gathered(pieces);
  for (auto& item : result) item.first.resize(item.first.size() - kMaster.size());
  return result;
}

optim::NamedTensors Optimization::state(const parallel::Exchange& exchange) const {
  optim::NamedTensors result{{kSkipped, at::scalar_tensor(skipped_, at::kLong)},
                             {kRate, at::scalar_tensor(learning_rate(), at::kDouble)}};
  for (const auto& [name, tensor] : exchange.gathered(optimizer_->state())) {
    result.emplace_back(kStates + name, tensor);
  }
  if (!scaler_) return result;
  for (const auto& [name, tensor] : scaler_->state()) result.emplace_back(kScaler + name, tensor);
  return result;
}

void Optimization::load(const parallel::Exchange& exchange, const optim::NamedTensors& state,
                        const optim::NamedTensors& parameters) {
  optim::NamedTensors steps;
  optim::NamedTensors scaler;
  for (const auto& [name, tensor] : state) {
    if (name == kSkipped) skipped_ = tensor.item<int64_t>();
    if (name == kRate) set_learning_rate(tensor.item<double>());
    if (name.starts_with(kStates)) steps.emplace_back(name.substr(kStates.size()), tensor);
    if (name.starts_with(kScaler)) scaler.emplace_back(name.substr(kScaler.size()), tensor);
  }
  optimizer_->load_state(exchange.sliced(steps));
  if (scaler_) scaler_->load_state(scaler);
  if (!masters_) return;
  const std::map<std::string, at::Tensor> values(parameters.begin(), parameters.end());
  optim::NamedTensors whole;
  for (const auto& master : masters_->list()) {
    whole.emplace_back(master.name + kMaster, values.at(master.name));
  }
  const auto pieces = exchange.sliced(whole);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < pieces.size(); ++i) masters_->list()[i].tensor.copy_(pieces[i].second);
}

}  // namespace troika::train
