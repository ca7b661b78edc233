#include "troika/parallel/servers/asynchronous_sums.h"

#include <utility>

#include "troika/compat/torch.h"
#include "troika/optim/flat_parameters.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

AsynchronousSums::AsynchronousSums(torch::nn::Module& module, const comm::Group& group,
                                   std::shared_ptr<SummationServers> servers)
    : module_(module), group_(group), servers_(std::move(servers)) {
  make_same(group_, module_, /*copy_state=*/true);
  parameters_ = trained_parameters(module_);
  const optim::FlatParameters dense(parameters_);  // checks them
  for (const auto& parameter : parameters_) {
    auto& bucket = values_.emplace_back();
    const auto& tensor = parameter.tensor;
    bucket.gradient.index = static_cast<int64_t>(values_.size()) - 1;
    bucket.gradient.flat = tensor.detach().as_strided({tensor.numel()}, {1});
  }
  servers_->lay_out(values_);
  spread_parameters();
}

bool AsynchronousSums::begin_step(double weight) {
  check_weight(weight);
  return weight > 0;
}

void AsynchronousSums::step_by(const std::function<void()>& update) {
  update();
  servers_->exchange(values_, server::SummationAction::change);
}

void AsynchronousSums::spread_parameters() {
  // No rank pushes what it has from before.
  group_.barrier({.label = "before an assignment to summation servers"});
  if (group_.rank() == 0) servers_->exchange(values_, server::SummationAction::set);
  synchronize_replicas();
}

void AsynchronousSums::synchronize_replicas() {
  group_.barrier({.label = "before a cut of summation servers"});
  servers_->exchange(values_, server::SummationAction::read);
  // No rank pushes before all have read.
  group_.barrier({.label = "cut of summation servers"});
  broadcast_packed(group_, module_.buffers(), 0, "module buffers");
}

void AsynchronousSums::load_state(const optim::NamedTensors& state) {
  for (const auto& [name, tensor] : without_sums(state)) {
    if (name != kBucketOrder) refuse_state(name);
  }
}

}  // namespace troika::parallel
