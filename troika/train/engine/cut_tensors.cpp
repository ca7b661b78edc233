#include "troika/train/engine/cut_tensors.h"

#include <utility>
#include <vector>

#include "troika/checkpoint/reader.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"

namespace troika::train {

using parallel::ParameterCut;

namespace {

void append_flat(checkpoint::NamedTensors& to, const state::Entry& entry, const ParameterCut& cut) {
  for (auto& [box, positions] : cut.flat_parts(*entry.box->flat)) {
    const auto elements = entry.second.flatten();
    to.emplace_back(entry.first, elements.index_select(0, positions.to(elements.device())),
                    std::move(box));
  }
}

}  // namespace

CutTensors::CutTensors(const parallel::ParameterStore& store, const torch::nn::Module& module) {
  for (const auto& [name, tensor] : nn::named_parameters(module)) {
    if (const auto* cut = store.cut_of(name)) cuts_.emplace(name, *cut);
  }
}

const ParameterCut* CutTensors::find(const std::string& parameter) const {
  const auto found = cuts_.find(parameter);
  return found == cuts_.end() ? nullptr : &found->second;
}

const ParameterCut* CutTensors::cut_named(const std::string& name) const {
  const auto* cut = find(name);
  return cut ? cut : find(name.substr(0, name.rfind('.')));
}

const ParameterCut* CutTensors::cut_for(const std::string& name, const at::Tensor& tensor) const {
  const auto* cut = cut_named(name);
  if (!cut || tensor.dim() != static_cast<int64_t>(cut->shape.size())) return nullptr;
  return tensor.size(cut->dim) == cut->size() ? cut : nullptr;
}

void CutTensors::give_boxes(checkpoint::NamedTensors& entries, const std::string& prefix) const {
  if (cuts_.empty()) return;
  checkpoint::NamedTensors result;
  for (auto& entry : entries) {
    const bool has_prefix = entry.first.starts_with(prefix);
    const auto name = has_prefix ? entry.first.substr(prefix.size()) : std::string();
    const bool is_flat = entry.box && entry.box->flat && entry.second.dim() > 0;
    const auto* cut = is_flat      ? cut_named(name)
                      : !entry.box ? cut_for(name, entry.second)
                                   : nullptr;
    if (cut && is_flat) {
      append_flat(result, entry, *cut);
    } else if (cut) {
      parallel::append_shard(result, entry, *cut);
    } else {
      result.push_back(std::move(entry));
    }
  }
  entries = std::move(result);
}

at::Tensor CutTensors::read(const checkpoint::CheckpointReader& saved, const std::string& key,
                            const ParameterCut& cut) {
  std::vector<at::Tensor> parts;
  for (auto& box : cut.boxes()) {
    box.name = key;
    parts.push_back(saved.read(box));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, cut.dim);
}

at::Tensor CutTensors::read_flat(const checkpoint::CheckpointReader& saved, const std::string& key,
                                 const std::string& name, const layout::Box& box) const {
  const auto* cut = cut_named(name);
  if (!cut) {
    auto part = box;
    part.name = key;
    return saved.read(part);
  }
  at::Tensor elements;
  for (auto& [part, positions] : cut->flat_parts(*box.flat)) {
    part.name = key;
    const auto read = saved.read(part);
    if (!elements.defined()) elements = at::empty({box.count()}, read.options());
    elements.index_copy_(0, positions, read);
  }
  return elements;
}

at::Tensor CutTensors::read_like(const checkpoint::CheckpointReader& saved, const std::string& key,
                                 const std::string& name, const at::Tensor& like) const {
  const auto* cut = cut_for(name, like);
  return cut ? read(saved, key, *cut) : saved.read(key);
}

}  // namespace troika::train
