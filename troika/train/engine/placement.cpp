#include "troika/train/engine/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/deferred_init.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/state.h"
#include "troika/train/options/options.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

// Whether tensors of several GPU ranks are exchanged without the host.
bool can_meet_on_gpus(const comm::Group& group) {
  return group.size() == 1 || group.backend().find("nccl") != std::string_view::npos;
}

[[noreturn]] void refuse_gpu(const std::string& accelerator, std::string got, std::string expected,
                             std::string hint = {}) {
  throw Error("train", ErrorKind::usage,
              {.what = "trainer.accelerator " + accelerator + " cannot be had",
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

// `replicas` is the number of this rank's replicas, each of which has a GPU.
at::Device device_of(const std::string& accelerator, const comm::Group& group, int64_t replicas) {
  if (accelerator == "cpu") return at::kCPU;
  const auto gpus = static_cast<int64_t>(compat::accelerator_count());
  const auto& nodes = group.nodes();
  const auto rank = static_cast<size_t>(group.rank());
  const auto local = std::count(nodes.begin(), nodes.begin() + group.rank(), nodes[rank]);
  if (accelerator == "auto") {
    const bool all_have_one = std::all_of(nodes.begin(), nodes.end(), [&](int node) {
      return std::count(nodes.begin(), nodes.end(), node) * replicas <= gpus;
    });
    if (!all_have_one || !can_meet_on_gpus(group)) return at::kCPU;
  } else if (gpus == 0) {
    refuse_gpu(accelerator, "a LibTorch that finds no CUDA device", "at least one GPU",
               "trainer.accelerator=cpu computes on processors");
  } else if ((local + 1) * replicas > gpus) {
    const bool has_one = replicas == 1;
    refuse_gpu(accelerator,
               has_one ? fmt::format("{} GPUs for rank {} of this machine", gpus, local)
                       : fmt::format("{} GPUs for {} replicas of rank {} of this machine", gpus,
                                     replicas, local),
               has_one ? "one for each rank" : "one for each replica",
               has_one
                   ? "start as many processes as there are GPUs"
                   : "trainer.devices replicas in all processes of a machine take as many GPUs");
  }
  return {compat::accelerator_type(), static_cast<at::DeviceIndex>(local * replicas)};
}

}  // namespace

Placement Placement::of(const TrainOptions& options, const comm::Group& group) {
  Placement result;
  result.precision = nn::parse_precision(options.trainer.precision);
  result.memory_format = nn::parse_memory_format(options.trainer.memory_format, result.precision);
  result.weight_layout = nn::parse_weight_layout(options.trainer.weight_layout);
  // The number of replicas does not depend on the cluster.
  const auto threads = resolve_plan(options, layout::Cluster()).threads;
  result.device = device_of(options.trainer.accelerator, group, std::max<int64_t>(1, threads));
  nn::require_supported(result.precision, result.device.type());
  return result;
}

void Placement::place(torch::nn::Module& module) const {
  compat::move_module(module, device, precision.parameters);
  nn::lay_out(module, memory_format);
  nn::lay_out_weights(module, weight_layout);
}

void Placement::place(torch::nn::Module& module, compat::DeferredInit& values) const {
  Placement on_host = *this;
  on_host.device = at::kCPU;
  values.record([&] { on_host.place(module); });
  if (device.is_cpu()) return;
  for (const auto& [name, tensor] : nn::named_state(module)) {
    if (values.has(tensor)) values.move(tensor, device);
  }
  compat::move_module(module, device, precision.parameters);
}

Placement Placement::in_order() const {
  Placement result = *this;
  result.memory_format = at::MemoryFormat::Contiguous;
  result.weight_layout = nn::WeightLayout::in_out;
  return result;
}

// Calls no operator of LibTorch: a step asks this of every tensor of its batch.
bool Placement::is_placed(const at::Tensor& tensor) const {
  if (!tensor.defined()) return true;
  const auto type = tensor.scalar_type();
  return tensor.device() == device && (type == precision.parameters || !at::isFloatingType(type)) &&
         (tensor.dim() != 4 || tensor.is_contiguous(memory_format));
}

bool Placement::is_placed(const data::Batch& batch) const {
  return is_placed(batch.inputs) && is_placed(batch.targets) &&
         std::ranges::all_of(batch.named, [&](const auto& one) { return is_placed(one.second); });
}

data::Batch Placement::place(data::Batch batch) const {
  const auto convert = [&](at::Tensor& tensor) {
    if (is_placed(tensor)) return;
    const auto type = tensor.scalar_type();
    // Types change on the device: a conversion on the host would give memory that is not staged.
    tensor = tensor.to(device, type, /*non_blocking=*/batch.is_staged && !device.is_cpu());
    if (at::isFloatingType(type)) tensor = tensor.to(precision.parameters);
    if (tensor.dim() == 4) tensor = tensor.contiguous(memory_format);
  };
  convert(batch.inputs);
  convert(batch.targets);
  for (auto& [name, tensor] : batch.named) convert(tensor);
  batch.is_staged = batch.is_staged && device.is_cpu();
  return batch;
}

}  // namespace troika::train
