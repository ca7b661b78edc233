#include "troika/parallel/replicated.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/autocast.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/state.h"
#include "troika/parallel/thread_team.h"

namespace troika::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kGradients = "gradients";

// Wraps the gradients, because autograd would treat a plain list of tensors as inputs.
struct Known {
  std::vector<at::Tensor> gradients;
};

// Returns the loss as a function of parameters whose gradients are already known.
struct KnownGradients : torch::autograd::Function<KnownGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss, const Known& known,
                            at::TensorList /*parameters*/) {
    context->saved_data[kGradients] = known.gradients;
    return loss.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_loss) {
    variable_list result(2);
    const auto saved = context->saved_data.find(kGradients);
    TROIKA_CHECK(saved != context->saved_data.end(), "backward() again through a replicated loss");
    // If the gradients have no second owner, autograd takes them over instead of copying them.
    auto gradients = saved->second.toTensorVector();
    context->saved_data.erase(saved);
    // The host does not wait for a device to know.
    const bool is_one = of_loss[0].is_cpu() && of_loss[0].item<double>() == 1;
    for (auto& gradient : gradients) {
      if (gradient.defined() && !is_one) gradient.mul_(of_loss[0]);
      result.push_back(std::move(gradient));
    }
    return result;
  }
};

std::vector<at::Tensor> tensors_of(const state::StateDict& list) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : list) result.push_back(tensor);
  return result;
}

// first = first + other, on `device`; either may be undefined.
void add_to(at::Tensor& first, const at::Tensor& other, c10::Device device) {
  if (!other.defined()) return;
  const auto own = other.to(device, other.scalar_type(), /*non_blocking=*/true);
  if (first.defined()) {
    first.add_(own);
  } else {
    first = own;
  }
}

// The device of replica `r` if that of the first is `first`.
c10::Device device_of_replica(c10::Device first, size_t r) {
  if (first.is_cpu()) return first;
  return {first.type(), static_cast<c10::DeviceIndex>(static_cast<size_t>(first.index()) + r)};
}

data::Batch moved_to(c10::Device device, data::Batch batch) {
  const auto move = [&](at::Tensor& tensor) {
    if (tensor.defined()) {
      tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
    }
  };
  move(batch.inputs);
  move(batch.targets);
  for (auto& [name, tensor] : batch.named) move(tensor);
  return batch;
}

}  // namespace

Replicated::Replicated(std::vector<ModuleReplica> replicas) : replicas_(std::move(replicas)) {
  if (replicas_.empty()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "no replicas", .got = "0", .expected = "at least one"});
  }
  const auto first = nn::named_state(*replicas_[0].module);
  for (size_t r = 1; r < replicas_.size(); ++r) {
    const auto state = nn::named_state(*replicas_[r].module);
    const auto same = [](const state::Entry& a, const state::Entry& b) {
      return a.first == b.first && a.second.sizes() == b.second.sizes();
    };
    if (std::equal(first.begin(), first.end(), state.begin(), state.end(), same)) continue;
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = fmt::format("replica {} has other parameters or buffers than replica 0", r),
         .hint = "make all of them by the same function"});
  }
  team_ = std::make_unique<ThreadTeam>(size());
}

Replicated::~Replicated() = default;

// Modules may have been cast, and parameters moved, since the last step.
void Replicated::follow_first() {
  const at::NoGradGuard no_grad;
  const auto parameters = tensors_of(nn::named_parameters(*replicas_[0].module));
  const auto buffers = tensors_of(nn::named_buffers(*replicas_[0].module));
  for (size_t r = 1; r < replicas_.size(); ++r) {
    auto& module = *replicas_[r].module;
    module.train(replicas_[0].module->is_training());
    const auto first = parameters.at(0).device();
    const auto device = device_of_replica(first, r);
    if (device != first) compat::move_module(module, device, parameters[0].scalar_type());
    const auto own_parameters = tensors_of(nn::named_parameters(module));
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto &mine = own_parameters[i], &theirs = parameters[i];
      if (device != first) {
        mine.copy_(theirs, /*non_blocking=*/true);
      } else if (mine.data_ptr() != theirs.data_ptr()) {
        mine.set_data(theirs.detach());
      }
      mine.requires_grad_(theirs.requires_grad());
    }
    const auto own_buffers = tensors_of(nn::named_buffers(module));
    for (size_t i = 0; i < buffers.size(); ++i) {
      const auto &mine = own_buffers[i], &theirs = buffers[i];
      if (device != first || mine.scalar_type() == theirs.scalar_type()) {
        mine.copy_(theirs, /*non_blocking=*/true);
      } else {
        mine.set_data(theirs.detach().clone());
      }
    }
  }
}

at::Tensor Replicated::loss(const data::Batch& batch) {
  follow_first();
  auto shares = data::split(batch, size());
  const auto samples = static_cast<double>(batch.size());
  const auto parameters = tensors_of(nn::trained_parameters(*replicas_[0].module));
  std::vector<std::vector<at::Tensor>> gradients(replicas_.size());
  std::vector<at::Tensor> losses(replicas_.size());
  const auto first = parameters.at(0).device();
  const c10::impl::VirtualGuardImpl devices(first.type());
  std::vector<c10::Stream> streams;  // the caller's, on the device of each replica
  for (size_t r = 0; r < replicas_.size(); ++r) {
    const auto own = device_of_replica(first, r);
    streams.push_back(devices.getStream(own));
    if (own != first) shares[r] = moved_to(own, std::move(shares[r]));
  }
  // Each thread has its own autocast for its forward pass, so that its cache of cast weights is
  // dropped before the weights change. Backward passes run outside of autocast.
  const auto autocast = compat::autocast_state(first.type());
  const compat::AutocastGuard without(first.type(), {});
  const auto keys = nn::DrawState::current().keys;
  team_->run([&](int index) {
    const auto r = static_cast<size_t>(index);
    const auto share = static_cast<double>(shares[r].size()) / samples;
    if (share == 0) return;
    const c10::StreamGuard on_stream(streams[r]);
    std::optional<nn::KeyedDraws> draws;
    if (keys) draws.emplace(nn::SampleKeys{keys->seed, shares[r].samples});
    const auto own = tensors_of(nn::trained_parameters(*replicas_[r].module));
    const auto loss = [&] {
      const compat::AutocastGuard guard(first.type(), autocast);
      return replicas_[r].loss(shares[r]) * share;
    }();
    gradients[r] = torch::autograd::grad({loss}, own, {}, /*retain_graph=*/{},
                                         /*create_graph=*/false, /*allow_unused=*/true);
    losses[r] = loss.detach();
  });
  // Adds in the order of replicas, independent of which thread handles a parameter. Sums of devices
  // are only queued here, in the order of the caller's streams.
  auto& sums = gradients[0];
  const auto add = [&](size_t i) {
    const at::NoGradGuard no_grad;
    for (size_t r = 1; r < gradients.size(); ++r) {
      if (!gradients[r].empty()) add_to(sums[i], gradients[r][i], first);
    }
  };
  if (first.is_cpu()) {
    std::atomic<size_t> next = 0;
    team_->run([&](int /*index*/) {
      for (size_t i = next++; i < sums.size(); i = next++) add(i);
    });
  } else {
    for (size_t i = 0; i < sums.size(); ++i) add(i);
  }
  for (size_t r = 1; r < losses.size(); ++r) add_to(losses[0], losses[r], losses[0].device());
  return KnownGradients::apply(losses[0], Known{std::move(sums)}, at::TensorList(parameters));
}

}  // namespace troika::parallel
