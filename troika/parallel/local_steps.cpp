#include "troika/parallel/local_steps.h"

#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

namespace {

void require_at_least(int64_t value, int64_t least, const char* name) {
  if (value >= least) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = std::string("option ") + name + " of local steps",
               .got = std::to_string(value),
               .expected = "an integer >= " + std::to_string(least)});
}

}  // namespace

LocalSteps::LocalSteps(torch::nn::Module& module, comm::Group group,
                       const LocalStepsOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  require_at_least(options_.period, 1, "period");
  make_same(group_, module_, options_.copy_state);
  parameters_ = trained_parameters(module_);
}

bool LocalSteps::begin_step(double weight) {
  check_weight(weight);
  if (std::exchange(finished_, false)) return false;
  weighted_ = true;
  weight_ += weight;
  idle_ = weight == 0;
  return true;
}

void LocalSteps::step_by(const std::function<void()>& update) {
  if (!std::exchange(idle_, false)) update();
  if (++round_ == options_.period) finished_ = !average();
}

void LocalSteps::synchronize_replicas() {
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
  std::vector<at::Tensor> values;
  for (const auto& parameter : parameters_) values.push_back(parameter.tensor.detach());
  average_packed(group_, values, factor, "local steps");
  average_buffers(factor);
  return true;
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
  optim::NamedTensors result{{"round", at::scalar_tensor(round_, at::kLong)}};
  if (weighted_) result.emplace_back("weight", at::scalar_tensor(weight_, at::kDouble));
  return result;
}

void LocalSteps::load_state(const optim::NamedTensors& state) {
  std::map<std::string, at::Tensor> rest;
  for (const auto& [name, tensor] : state) rest.emplace(name, tensor);
  const auto found = rest.extract("round");
  if (found.empty()) refuse_state("no round");
  const auto round = found.mapped().item<int64_t>();
  if (round < 0 || round >= options_.period) refuse_state("round");
  const auto weight = rest.extract("weight");
  if (!rest.empty()) refuse_state(rest.begin()->first);
  round_ = round;
  weighted_ = !weight.empty();
  weight_ = weighted_ ? weight.mapped().item<double>() : 0;
  idle_ = false;
  finished_ = false;
}

}  // namespace troika::parallel
