// The functions inside a model's layers with which the ranks of a tensor axis compute them
// together.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/model.h"
#include "troika/parallel/tensor/parameter_cuts.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

// Sets the functions and parts (nn/hooked.h) of a model's layers for the lifetime of this object.
// The model must outlive it.
class AxisHooks {
 public:
  // `modules` are those of the model, whose parameters are cut by parameter_cuts(). With
  // `sequence`, each rank has its tokens between layers (TensorOptions::sequence). `trace`: see
  // copy_to_axis().
  AxisHooks(nn::Model& model, comm::Group axis, const std::vector<RuledModule>& modules,
            bool sequence, Trace* trace = nullptr);
  ~AxisHooks() { remove(); }
  AxisHooks(const AxisHooks&) = delete;
  AxisHooks& operator=(const AxisHooks&) = delete;

  // Removes the functions; the destructor then does nothing.
  void remove();

  // Gives all ranks the running statistics of all channels of batch norms of kind norm_of_column; a
  // rank updates those of its own channels only. Takes the batch norms whose buffers `is_held`
  // names, the same on all ranks. Collective if there are such; blocks.
  void complete_statistics(const std::function<bool(const std::string& buffer)>& is_held) const;

 private:
  void add(const RuledModule& of, bool has_own_input);

  nn::Model& model_;
  const comm::Group axis_;
  const bool sequence_;
  Trace* const trace_;
  std::vector<RuledModule> hooked_;
  bool is_removed_ = false;
};

}  // namespace troika::parallel
