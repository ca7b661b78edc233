#include "troika/parallel/local_steps.h"

#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

constexpr std::string_view kAnchor = "anchor.";
constexpr std::string_view kOuter = "outer.";
constexpr std::string_view kSynchronous = "synchronous.";

void require_at_least(int64_t value, int64_t least, const char* name) {
  if (value >= least) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = std::string("option ") + name + " of local steps",
               .got = std::to_string(value),
               .expected = "an integer >= " + std::to_string(least)});
}

void append(optim::NamedTensors& list, std::string_view prefix, const optim::NamedTensors& more) {
  for (const auto& [name, tensor] : more) list.emplace_back(std::string(prefix) + name, tensor);
}

}  // namespace

optim::OptimizerOptions diloco_outer(double lr, double momentum) {
  return {.name = "sgd", .lr = lr, .momentum = momentum, .nesterov = momentum > 0};
}

LocalSteps::LocalSteps(torch::nn::Module& module, comm::Group group,
                       const LocalStepsOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  require_at_least(options_.period, 1, "period");
  require_at_least(options_.warmup_steps, 0, "warmup_steps");
  if (options_.warmup_steps > 0) {
    synchronous_ = std::make_unique<DataParallel>(module_, group_, options_.synchronous);
  } else {
    make_same(group_, module_, options_.synchronous.copy_state);
  }
  parameters_ = trained_parameters(module_);
  if (options_.outer) make_anchors();
}

LocalSteps::~LocalSteps() = default;

void LocalSteps::make_anchors() {
  std::vector<optim::Parameter> list;
  for (const auto& parameter : parameters_) {
    anchors_.push_back(parameter.tensor.detach().clone());
    list.push_back({parameter.name, anchors_.back()});
  }
  outer_ = optim::make_optimizer(std::move(list), *options_.outer);
}

bool LocalSteps::begin_step(double weight) {
  if (synchronous_) return synchronous_->begin_step(weight);
  check_weight(weight);
  if (std::exchange(finished_, false)) return false;
  weighted_ = true;
  weight_ += weight;
  idle_ = weight == 0;
  return true;
}

void LocalSteps::finish_backward() {
  if (synchronous_) synchronous_->finish_backward();
}

void LocalSteps::continue_step() {
  if (synchronous_) synchronous_->continue_step();
}

bool LocalSteps::set_syncing(bool syncing) {
  return synchronous_ ? synchronous_->set_syncing(syncing) : true;
}

std::vector<at::Tensor> LocalSteps::gradients() const {
  return synchronous_ ? synchronous_->gradients() : ParameterStore::gradients();
}

void LocalSteps::step_by(const std::function<void()>& update) {
  if (synchronous_) {
    synchronous_->step_by(update);
    if (++steps_ == options_.warmup_steps) end_warmup();
    return;
  }
  if (!std::exchange(idle_, false)) update();
  if (++round_ == options_.period) finished_ = !average();
}

void LocalSteps::end_warmup() {
  synchronous_->synchronize_replicas();
  synchronous_.reset();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors_.size(); ++i) anchors_[i].copy_(parameters_[i].tensor);
}

void LocalSteps::synchronize_replicas() {
  if (synchronous_) synchronous_->synchronize_replicas();
  if (round_ > 0) average();
}

// Averages over the ranks. Returns false if all ranks' weights are 0.
bool LocalSteps::average() {
  double factor = 1;
  double total = 1;
  if (weighted_) {
    const auto weights = gather_weights(group_, weight_);
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (total > 0) factor = weight_ * group_.size() / total;
  }
  round_ = 0;
  weight_ = 0;
  weighted_ = false;
  if (total == 0) return false;
  average_parameters(factor);
  average_buffers(factor);
  return true;
}

void LocalSteps::average_parameters(double factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (const auto& parameter : parameters_) values.push_back(parameter.tensor.detach());
  if (!outer_) {
    average_packed(group_, values, factor, "local steps");
    return;
  }
  std::vector<at::Tensor> outer_gradients;
  for (size_t i = 0; i < values.size(); ++i) outer_gradients.push_back(anchors_[i] - values[i]);
  average_packed(group_, outer_gradients, factor, "local steps");
  for (size_t i = 0; i < values.size(); ++i) anchors_[i].mutable_grad() = outer_gradients[i];
  outer_->step();
  for (size_t i = 0; i < values.size(); ++i) {
    anchors_[i].mutable_grad().reset();
    values[i].copy_(anchors_[i]);
  }
}

void LocalSteps::average_buffers(double factor) {
  std::vector<at::Tensor> averaged;
  std::vector<at::Tensor> copied;
  for (const auto& buffer : module_.buffers()) {
    (at::isFloatingType(buffer.scalar_type()) ? averaged : copied).push_back(buffer);
  }
  average_packed(group_, averaged, factor, "buffers after local steps");
  broadcast_packed(group_, copied, 0, "buffers after local steps");
}

optim::NamedTensors LocalSteps::state() const {
  optim::NamedTensors result{{"steps", at::scalar_tensor(steps_, at::kLong)},
                             {"round", at::scalar_tensor(round_, at::kLong)}};
  if (weighted_) result.emplace_back("weight", at::scalar_tensor(weight_, at::kDouble));
  for (size_t i = 0; i < anchors_.size(); ++i) {
    result.emplace_back(std::string(kAnchor) + parameters_[i].name, anchors_[i]);
  }
  if (outer_) append(result, kOuter, outer_->state());
  if (synchronous_) append(result, kSynchronous, synchronous_->state());
  return result;
}

void LocalSteps::load_state(const optim::NamedTensors& state) {
  optim::NamedTensors outer;
  optim::NamedTensors synchronous;
  std::map<std::string, at::Tensor> rest;
  for (const auto& [name, tensor] : state) {
    if (outer_ && name.starts_with(kOuter)) {
      outer.emplace_back(name.substr(kOuter.size()), tensor);
    } else if (name.starts_with(kSynchronous)) {
      synchronous.emplace_back(name.substr(kSynchronous.size()), tensor);
    } else {
      rest.emplace(name, tensor);
    }
  }
  const auto take = [&](const std::string& name) {
    const auto found = rest.extract(name);
    if (found.empty()) refuse_state("no " + name);
    return found.mapped();
  };
  const auto steps = take("steps").item<int64_t>();
  const auto round = take("round").item<int64_t>();
  if (steps < 0 || steps > options_.warmup_steps) refuse_state("steps");
  if (round < 0 || round >= options_.period) refuse_state("round");
  std::vector<at::Tensor> anchors;
  for (size_t i = 0; i < anchors_.size(); ++i) {
    anchors.push_back(take(std::string(kAnchor) + parameters_[i].name));
    if (anchors[i].sizes() != anchors_[i].sizes()) {
      refuse_state(std::string(kAnchor) + parameters_[i].name);
    }
  }
  const auto weight = rest.extract("weight");
  if (!rest.empty()) refuse_state(rest.begin()->first);
  const bool in_warmup = steps < options_.warmup_steps;
  if (!in_warmup && !synchronous.empty()) refuse_state(synchronous.front().first);

  if (outer_) outer_->load_state(outer);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < anchors.size(); ++i) anchors_[i].copy_(anchors[i]);
  synchronous_.reset();
  if (in_warmup) {
    synchronous_ = std::make_unique<DataParallel>(module_, group_, options_.synchronous);
    synchronous_->load_state(synchronous);
  }
  steps_ = steps;
  round_ = round;
  weighted_ = !weight.empty();
  weight_ = weighted_ ? weight.mapped().item<double>() : 0;
  idle_ = false;
  finished_ = false;
}

}  // namespace troika::parallel
