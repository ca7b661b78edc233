#include "troika/parallel/pipeline/stage_tensors.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/parallel/replicas.h"

namespace troika::parallel {

using layout::Axis;

namespace {

// All ranks make the values of one process, rank 0's.
void draw_alike(compat::DeferredInit& values, const comm::Group& world) {
  const auto generator = values.generator().clone();
  world.broadcast(generator, 0, {.label = "random generator"}).wait();
  values.set_generator(generator);
}

comm::Group layer_of(const comm::MeshGroups& groups) {
  const auto& world = groups.world();
  if (groups.mesh().size(Axis::tensor) == 1) return world;
  return *world.split(groups.mesh().coordinates(world.rank())[Axis::tensor]);
}

}  // namespace

StageTensors::StageTensors(nn::Model& model, const StagesOfModel& stages,
                           const PipelinePlace& place, const PipelineOptions& options,
                           const comm::MeshGroups& groups)
    : model_(model),
      stages_(stages),
      place_(place),
      axis_(groups.along(Axis::tensor)),
      layer_(layer_of(groups)) {
  std::set<std::string> held;
  for (const int stage : place.own_stages()) {
    held.merge(tensors_of_blocks(model, stages[stage].begin, stages[stage].end));
  }
  if (options.values) draw_alike(*options.values, groups.world());
  if (axis_.size() > 1) {
    tensor_ = std::make_unique<TensorParallel>(model, axis_, options.split_table,
                                               TensorOptions{.sequence = options.sequence_parallel,
                                                             .held = held,
                                                             .values = options.values,
                                                             .trace = options.trace});
  }
  left_out_ = std::make_unique<LeftOut>(model, held, tensor_ ? nullptr : options.values);
  if (options.tensor_overlap) {
    lanes_ = std::make_unique<Lanes>(model.parameters().front().device(), options.trace);
  }
}

StageTensors::~StageTensors() {
  if (!tensor_ || is_whole()) return;
  for (const auto& [cut, parameter] : tensor_->parameters()) {
    if (!cut.is_whole()) leave_out(parameter, cut.shape);
  }
}

void StageTensors::take_stepped(std::vector<optim::Parameter> parameters) {
  trained_ = std::move(parameters);
  stepped_ = trained_;
  // Shards of ZeRO are tensors of their own.
  for (auto& parameter : stepped_) {
    if (!parameter.box) parameter.tensor = parameter.tensor.detach();
  }
}

void StageTensors::finish_backward() {
  if (!tensor_) return;
  tensor_->finish_backward(trained_);
  for (size_t i = 0; i < stepped_.size(); ++i) {
    stepped_[i].tensor.mutable_grad() = trained_[i].tensor.grad();
  }
}

void StageTensors::drop_gradients() {
  for (auto& parameter : stepped_) parameter.tensor.mutable_grad().reset();
}

void StageTensors::make_whole() {
  const bool is_first = !left_out_->is_restored();
  left_out_->restore();
  const at::NoGradGuard no_grad;
  std::set<std::string> done;
  for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
    const auto names = tensors_of_blocks(model_, stages_[s].begin, stages_[s].end);
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : nn::named_state(model_)) {
      if (names.contains(name) && done.insert(name).second) tensors.push_back(tensor);
    }
    if (tensors.empty()) continue;
    // The owner's tensors may have another order in memory.
    std::vector<at::Tensor> contiguous;
    for (const auto& tensor : tensors) contiguous.push_back(tensor.contiguous());
    const int owner = place_.replicas(s).front();
    const auto layer = place_.mesh().group(owner, {Axis::pipeline, Axis::data, Axis::context});
    const auto root = std::ranges::find(layer, owner) - layer.begin();
    broadcast_packed(layer_, contiguous, static_cast<int>(root), "stages of the model");
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].is_contiguous()) tensors[i].copy_(contiguous[i]);
    }
  }
  if (tensor_ && is_first) tensor_->make_whole();
}

}  // namespace troika::parallel
