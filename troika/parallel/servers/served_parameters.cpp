#include "troika/parallel/servers/served_parameters.h"

#include <algorithm>
#include <exception>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/group_error.h"
#include "troika/parallel/servers/served_model.h"
#include "troika/server/worker.h"
#include "troika/server/world.h"

namespace troika::parallel {

ServedParameters::ServedParameters(torch::nn::Module& module, comm::Group group,
                                   const ServedOptions& options)
    : module_(module),
      group_(std::move(group)),
      model_(std::make_unique<ServedModel>(module, options, 1.0 / group_.size())),
      limit_(limit_of(options.servers)),
      staleness_(kMostStaleness + 1) {
  make_same(group_, module_, true);
  const bool is_eventual = options.servers.consistency == "eventual";
  with_servers([&] {
    model_->start(ReplicaPlace::of_each(group_), options.servers,
                  is_eventual ? server::Application::per_push : server::Application::per_step);
  });
  give_to_servers();
  with_servers([&] { model_->worker().begin_step().wait(deadline()); });
  ++staleness_[0];
}

ServedParameters::~ServedParameters() {
  // Servers of their own processes must know that the rank has left. A rank that has failed does
  // not wait for others.
  if (!model_->is_launched() || std::uncaught_exceptions() > 0) return;
  try {
    model_->world().leave(Deadline::after(2 * limit_));
  } catch (const Error& error) {
    log::warn("the parameter server: {}", error.what());
  }
}

std::vector<optim::Parameter> ServedParameters::parameters() const {
  return model_->parameters();
}

Deadline ServedParameters::deadline() const {
  return Deadline::after(group_.options().timeout);
}

void ServedParameters::with_servers(const std::function<void()>& act) {
  with_group_errors(group_, limit_, act);
}

std::unique_ptr<optim::FlatOptimizer> ServedParameters::own_optimizer() {
  return model_->make_optimizer([this](double rate) { push(rate); });
}

bool ServedParameters::begin_step(double weight) {
  const auto weights = gather_weights(group_, weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (total > 0) factor_ = weight * group_.size() / total;
  return total > 0;
}

void ServedParameters::push(double rate) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model_->parameters()) gradients.push_back(parameter.tensor.grad());
  with_servers([&] { model_->push(gradients, rate, factor_); });
  has_pushed_ = true;
}

void ServedParameters::step_by(const std::function<void()>& update) {
  update();
  if (!std::exchange(has_pushed_, false)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameters on servers were stepped by another optimizer",
                 .expected = "that of own_optimizer()"});
  }
  is_cut_ = false;
  with_servers([&] {
    model_->worker().end_step();
    begin_next_step();
  });
}

void ServedParameters::begin_next_step() {
  auto& worker = model_->worker();
  worker.begin_step().wait(deadline());
  const int64_t staleness = worker.step() - 1 - worker.committed();
  ++staleness_[static_cast<size_t>(std::min(staleness, kMostStaleness))];
  model_->take(model_->pull(), deadline());
}

void ServedParameters::synchronize_replicas() {
  if (!is_cut_) {
    with_servers([&] {
      auto& worker = model_->worker();
      worker.wait_until_committed(worker.step() - 1, deadline());
      model_->take_states(deadline());
    });
    // No rank pushes before all have pulled.
    start_barrier(group_, "cut of parameter servers").wait();
    is_cut_ = true;
  }
  broadcast_packed(group_, module_.buffers(), 0, "module buffers");
}

void ServedParameters::spread_parameters() {
  with_servers([&] {
    auto& worker = model_->worker();
    worker.wait_until_committed(worker.step() - 1, deadline());
  });
  group_.barrier({.label = "before an assignment to parameter servers"});
  give_to_servers();
}

void ServedParameters::give_to_servers() {
  with_servers([&] {
    if (group_.rank() == 0) model_->assign(deadline());
  });
  group_.barrier({.label = "assignment to parameter servers"});
}

std::vector<std::pair<std::string, double>> ServedParameters::take_statistics() {
  const auto counts = at::tensor(staleness_, at::kLong);
  group_.all_reduce(counts, comm::ReduceOp::sum, {.label = "staleness"});
  std::ranges::fill(staleness_, 0);
  return staleness_metrics({counts.data_ptr<int64_t>(), static_cast<size_t>(counts.numel())});
}

void ServedParameters::load_state(const optim::NamedTensors& state) {
  for (const auto& [name, tensor] : without_sums(state)) {
    if (name != kBucketOrder) refuse_state(name);
  }
}

}  // namespace troika::parallel
