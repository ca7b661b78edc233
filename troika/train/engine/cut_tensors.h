// How checkpoints hold tensors that are cut over a tensor axis.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "troika/checkpoint/safetensors.h"
#include "troika/parallel/tensor/parameter_cuts.h"

namespace troika::checkpoint {
class CheckpointReader;
}
namespace troika::parallel {
class ParameterStore;
}

namespace troika::train {

// The cuts of a rank's parameters, for its tensors that are cut like them: the parameters and their
// states. Empty for a model that is whole.
class CutTensors {
 public:
  CutTensors() = default;
  // Takes the cuts of all the module's parameters that the store has cut.
  CutTensors(const parallel::ParameterStore& store, const torch::nn::Module& module);

  bool is_empty() const { return cuts_.empty(); }
  // Returns null if the parameter is whole.
  const parallel::ParameterCut* find(const std::string& parameter) const;
  // Replaces entries of shards, and of flat ranges of shards, by entries with boxes in whole
  // tensors. `prefix` precedes the names of parameters, behind which may be the name of a state.
  // Leaves tensors that are not cut, such as step counts.
  void give_boxes(checkpoint::NamedTensors& entries, const std::string& prefix) const;
  // Reads this rank's shard of the saved tensor `key`, which is cut like the parameter.
  static at::Tensor read(const checkpoint::CheckpointReader& saved, const std::string& key,
                         const parallel::ParameterCut& cut);
  // Reads the elements of `box`, a flat range of a tensor of this rank, from the saved tensor
  // `key`: of the parameter's shard, or of the whole parameter. `name` is that of a parameter, or
  // that of a parameter's state. Returns them in one dimension.
  at::Tensor read_flat(const checkpoint::CheckpointReader& saved, const std::string& key,
                       const std::string& name, const layout::Box& box) const;
  // The same for a tensor `key` that may be whole on this rank, where it has the sizes of `like`.
  // `name` is that of a parameter, or that of a parameter's state.
  at::Tensor read_like(const checkpoint::CheckpointReader& saved, const std::string& key,
                       const std::string& name, const at::Tensor& like) const;

 private:
  // Returns the cut of a parameter or of a parameter's state; null: there is none.
  const parallel::ParameterCut* cut_named(const std::string& name) const;
  // The same if a tensor of these sizes is its
  // shard; otherwise null.
  const parallel::ParameterCut* cut_for(const std::string& name, const at::Tensor& tensor) const;

  std::map<std::string, parallel::ParameterCut> cuts_;
};

}  // namespace troika::train
