#include "troika/train/engine/optimization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

const std::string kSkipped = "skipped";
const std::string kRate = "rate";
const std::string kStates = "state.";
const std::string kScaler = "scaler.";

// The kinds of states that an optimizer keeps for each parameter: "exp_avg" for the state
// "fc.weight.exp_avg".
std::set<std::string> kinds(const std::vector<std::string>& states) {
  std::set<std::string> result;
  for (const auto& name : states) result.insert(name.substr(name.rfind('.') + 1));
  return result;
}

// Refuses states of another optimizer, naming their kinds, before load_state() reports a single
// missing state.
void require_same_optimizer(const checkpoint::CheckpointReader& checkpoint,
                            const std::string& prefix, const optim::NamedTensors& own) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : own) names.push_back(name);
  const auto theirs = kinds(checkpoint.names(prefix)), ours = kinds(names);
  if (theirs == ours) return;
  const auto words = [](const std::set<std::string>& names) {
    return names.empty() ? "no state" : fmt::format("{}", fmt::join(names, ", "));
  };
  throw Error(
      "train", ErrorKind::usage,
      {.what = "cannot resume from " + checkpoint.path().string() + " with another optimizer",
       .got = "one that keeps " + words(ours),
       .expected = "the one that kept " + words(theirs),
       .hint = "optim.name and optim.momentum as they were, or model.weights to start a new "
               "run from its weights"});
}

c10::Device device_of(const std::vector<optim::Parameter>& parameters) {
  return parameters.empty() ? c10::Device(at::kCPU) : parameters.front().tensor.device();
}

// All optimizers of room optim can step shards; see FlatOptimizer::complete_sums_by().
void require_steppable(const parallel::ParameterStore& store, const OptimizerRecipe& recipe) {
  if (!store.has_shards() || !recipe.make || recipe.is_element_wise) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a strategy that shares parameters out among ranks",
               .got = "optimizer of configure_optimizers(), which needs whole ones",
               .expected = "one of optim.name, or one that treats each element by itself"});
}

// The recipe, or one that makes the store's own optimizer.
OptimizerRecipe recipe_for(OptimizerRecipe recipe, parallel::ParameterStore& store) {
  const auto own = std::make_shared<std::unique_ptr<optim::FlatOptimizer>>(store.own_optimizer());
  if (*own) recipe.make = [own](const auto&) { return std::move(*own); };
  return recipe;
}

}  // namespace

Optimization::Optimization(const nn::NumericPrecision& precision, parallel::ParameterStore& store,
                           const OptimizerRecipe& recipe, CutTensors cuts)
    : Optimization(
          precision, store.parameters(), recipe_for(recipe, store),
          [&store](bool here) { return store.reducer().any(here, "overflow of gradients"); },
          store.may_be_empty()) {
  require_steppable(store, recipe);
  cuts_ = std::move(cuts);
  optimizer_->complete_sums_by([&store](const at::Tensor& sums) { store.complete_sums(sums); });
}

Optimization::Optimization(const nn::NumericPrecision& precision,
                           std::vector<optim::Parameter> parameters, const OptimizerRecipe& recipe,
                           optim::GradScaler::FlagReduction any_rank, bool may_be_empty) {
  const auto device = device_of(parameters);
  const auto stepped_on = steps_on_devices(recipe) ? device : c10::Device(at::kCPU);
  if (precision.needs_masters() || stepped_on != device) {
    masters_.emplace(std::move(parameters), stepped_on);
    parameters = masters_->list();
  }
  if (precision.needs_scaler()) scaler_.emplace(optim::GradScalerOptions{}, std::move(any_rank));
  parameters_ = parameters;
  optimizer_ = parameters.empty() && may_be_empty ? make_empty_optimizer(recipe)
                                                  : make_optimizer(recipe, std::move(parameters));
}

at::Tensor Optimization::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void Optimization::clip(parallel::ParameterStore& store, double bound, const std::string& by) {
  value_bound_ = by == "value" ? bound : 0;
  if (bound == 0 || by == "value") return;
  // Scales are powers of two, so clipping a norm equals clipping that of the unscaled gradients, to
  // the bit.
  const double scaled_bound = bound * loss_scale().value_or(1);
  if (by == "norm") {
    store.clip_grad_norm(scaled_bound);
    return;
  }
  store.clip_stage_grad_norm(scaled_bound);
}

void Optimization::step(parallel::ParameterStore& store) {
  store.step_by([this] { update(); });
}

void Optimization::update() {
  if (masters_) masters_->take_gradients();
  if (scaler_) scaler_->unscale(*optimizer_);
  if (value_bound_ > 0) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) {
      auto& gradient = parameter.tensor.mutable_grad();
      if (gradient.defined()) gradient.clamp_(-value_bound_, value_bound_);
    }
  }
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
  for (const auto& master : masters_->list()) {
    result.emplace_back(master.name, master.tensor, master.box);
  }
  return result;
}

optim::NamedTensors Optimization::state() const {
  optim::NamedTensors result{{kSkipped, at::scalar_tensor(skipped_, at::kLong)},
                             {kRate, at::scalar_tensor(learning_rate(), at::kDouble)}};
  state::append(result, kStates, optimizer_->state());
  cuts_.give_boxes(result, kStates);
  if (scaler_) state::append(result, kScaler, scaler_->state());
  return result;
}

optim::NamedTensors Optimization::saved_states(const checkpoint::CheckpointReader& saved,
                                               const std::string& prefix) const {
  optim::NamedTensors result;
  for (const auto& entry : optimizer_->state()) {
    const auto& [name, tensor] = entry;
    const auto key = prefix + name;
    if (!saved.has(key)) continue;
    if (!entry.box || tensor.dim() == 0) {
      result.emplace_back(name, cuts_.read_like(saved, key, name, tensor));
      continue;
    }
    result.emplace_back(name, cuts_.read_flat(saved, key, name, *entry.box).view(tensor.sizes()));
  }
  return result;
}

void Optimization::load(const checkpoint::CheckpointReader& saved, const std::string& prefix) {
  skipped_ = saved.read(prefix + kSkipped).item<int64_t>();
  set_learning_rate(saved.read(prefix + kRate).item<double>());
  if (!parameters_.empty()) require_same_optimizer(saved, prefix + kStates, optimizer_->state());
  optimizer_->load_state(saved_states(saved, prefix + kStates));
  if (scaler_) scaler_->load_state(saved.read_all(prefix + kScaler));
  if (masters_) masters_->give_weights();
}

}  // namespace troika::train
