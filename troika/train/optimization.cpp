#include "troika/train/optimization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/shard_states.h"
#include "troika/train/checkpoint/reader.h"

namespace troika::train {

namespace {

const std::string kSkipped = "skipped";
const std::string kRate = "rate";
const std::string kStates = "state.";
const std::string kScaler = "scaler.";

// The names of the states an optimizer keeps for each parameter: "exp_avg" for the state
// "fc.weight.exp_avg".
std::set<std::string> kinds(const optim::NamedTensors& states) {
  std::set<std::string> result;
  for (const auto& [name, tensor] : states) result.insert(name.substr(name.rfind('.') + 1));
  return result;
}

// Refuses another optimizer by name of its states, before load_state() misses a single one.
void require_same_optimizer(const optim::NamedTensors& saved, const optim::NamedTensors& own,
                            const CheckpointReader& checkpoint) {
  const auto theirs = kinds(saved), ours = kinds(own);
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

bool is_on_host(const std::vector<optim::Parameter>& parameters) {
  return std::all_of(parameters.begin(), parameters.end(),
                     [](const auto& parameter) { return parameter.tensor.is_cpu(); });
}

// Optimizers of room optim step pieces; see FlatOptimizer::complete_sums_by().
void require_steppable(const parallel::ParameterStore& store, const OptimizerRecipe& recipe) {
  if (store.shards().empty() || !recipe.make || recipe.is_element_wise) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a strategy that shares parameters out among ranks",
               .got = "optimizer of configure_optimizers(), which needs whole ones",
               .expected = "one of optim.name, or one that treats each element by itself"});
}

}  // namespace

Optimization::Optimization(const nn::Precision& precision, const parallel::ParameterStore& store,
                           const OptimizerRecipe& recipe)
    : Optimization(precision, store.parameters(), recipe, [&store](bool here) {
        return store.reducer().any(here, "overflow of gradients");
      }) {
  require_steppable(store, recipe);
  optimizer_->complete_sums_by(
      [&store](const at::Tensor& sums) { store.reducer().sum(sums, "norms of parameters"); });
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

void Optimization::clip(parallel::ParameterStore& store, double bound, const std::string& by) {
  if (bound == 0) return;
  if (by == "norm") {
    // Scales are powers of two: this is the clipping of the unscaled gradients, to the bit.
    store.clip_grad_norm(bound * loss_scale().value_or(1));
    return;
  }
  take_gradients();
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) parameter.tensor.grad().clamp_(-bound, bound);
  }
}

void Optimization::step(parallel::ParameterStore& store) {
  store.step_by([this] { update(); });
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

optim::NamedTensors Optimization::masters() const {
  optim::NamedTensors result;
  if (!masters_) return result;
  for (const auto& master : masters_->list()) result.emplace_back(master.name, master.tensor);
  return result;
}

optim::NamedTensors Optimization::state() const {
  optim::NamedTensors result{{kSkipped, at::scalar_tensor(skipped_, at::kLong)},
                             {kRate, at::scalar_tensor(learning_rate(), at::kDouble)}};
  for (const auto& [name, tensor] : optimizer_->state()) {
    result.emplace_back(kStates + name, tensor);
  }
  if (!scaler_) return result;
  for (const auto& [name, tensor] : scaler_->state()) result.emplace_back(kScaler + name, tensor);
  return result;
}

std::vector<layout::Box> Optimization::shards(const parallel::ParameterStore& store) const {
  const auto shards = store.shards();
  if (shards.empty()) return {};
  std::vector<layout::Box> result;
  for (const auto& [name, tensor] : optimizer_->state()) {
    result.push_back(parallel::shard_of_state(shards, name, tensor.dim(), elements_each(name)));
    result.back().name = kStates + name;
  }
  return result;
}

int64_t Optimization::elements_each(const std::string& state) const {
  return optimizer_->elements_each(std::string_view(state).substr(state.rfind('.') + 1));
}

optim::NamedTensors Optimization::saved_states(const parallel::ParameterStore& store,
                                               const CheckpointReader& saved,
                                               const std::string& prefix) const {
  const auto shards = store.shards();
  std::map<std::string, at::Tensor> own;
  for (auto& [name, tensor] : optimizer_->state()) own.emplace(name, tensor);
  optim::NamedTensors result;
  for (const auto& name : saved.names(prefix)) {
    const auto state = name.substr(prefix.size());
    const auto& shape = saved.shape(name);
    if (shards.empty() || shape.empty()) {
      result.emplace_back(state, saved.read(name));
      continue;
    }
    const auto shard = parallel::shard_of_state(shards, state, static_cast<int64_t>(shape.size()),
                                                elements_each(state));
    if (shard.shape != shape) {
      throw Error("train", ErrorKind::usage,
                  {.what = "state " + state + " of " + saved.path().string() + " does not fit",
                   .got = fmt::format("[{}]", fmt::join(shape, ", ")),
                   .expected = fmt::format("[{}]", fmt::join(shard.shape, ", "))});
    }
    auto box = shard;
    box.name = name;
    const auto part = saved.read(box);
    const auto like = own.find(state);
    result.emplace_back(state, like == own.end() ? part : part.view(like->second.sizes()));
  }
  return result;
}

void Optimization::load(const parallel::ParameterStore& store, const CheckpointReader& saved,
                        const std::string& prefix) {
  skipped_ = saved.read(prefix + kSkipped).item<int64_t>();
  set_learning_rate(saved.read(prefix + kRate).item<double>());
  const auto states = saved_states(store, saved, prefix + kStates);
  require_same_optimizer(states, optimizer_->state(), saved);
  optimizer_->load_state(states);
  if (scaler_) scaler_->load_state(saved.read_all(prefix + kScaler));
  if (masters_) masters_->give_weights();
}

}  // namespace troika::train
