// Averages weights over the course of a run: PyTorch's torch.optim.swa_utils.AveragedModel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "troika/checkpoint/safetensors.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"

namespace troika::checkpoint {
class CheckpointReader;
struct RankState;
}  // namespace troika::checkpoint

namespace troika::train {

struct FitContext;

// Averages the tensors that this rank's optimizer steps: parameters, float32 masters, or, with
// ZeRO, this rank's shards, so the average is sharded too. The first update copies.
class WeightAverage {
 public:
  // Later updates with a decay: average = decay * average + (1 - decay) * weights, as
  // get_ema_multi_avg_fn. Without a decay, the mean of all weights: average += (weights - average)
  // / (n + 1), as get_swa_multi_avg_fn. With `buffers`, floating-point buffers of the module are
  // averaged in the same way and integer buffers are copied; buffers must be the same on all ranks.
  explicit WeightAverage(std::optional<double> decay, bool buffers = false)
      : decay_(decay), uses_buffers_(buffers) {}

  // Must be called before the functions below. Starts a new average, or continues the one given to
  // load_state(). The context's store and module must outlive this object's use. Called by all
  // ranks.
  void attach(const FitContext& context);

  void update();
  int64_t updates() const { return updates_; }
  bool is_in_module() const { return is_in_module_; }
  // Returns a deep copy, attached to the same module. Must not be called while the average is in
  // the module.
  WeightAverage copy() const;

  // Replaces the module's weights, which must be the same on all ranks, by the average. Does
  // nothing before the first update. Called by all ranks, between micro-batches; blocks.
  void put_into_module();
  // Restores the replaced weights bit for bit. Called by all ranks; blocks.
  void take_back();
  // Restores only the tensors that this rank steps, which is the whole module if nothing is
  // sharded.
  void take_back_alone();

  // Returns "updates" and, for each tensor that this rank steps, `<parameter>.average` (float32 for
  // 16-bit types). Tensors may share memory with this object.
  checkpoint::NamedTensors state() const;
  // Makes attach() read this rank's part from `saved`.
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix);

  // Makes the average the model of a checkpoint, and adds the weights to resume from under
  // kRawPrefix. Does nothing before the first update. Tensors share memory with this object and the
  // module.
  void put_into(checkpoint::RankState& state) const;
  // Returns only "updates", as the state beside put_into().
  checkpoint::NamedTensors count() const;
  // Makes attach() read the average from the checkpoint's model, and the result of count() from the
  // entries that begin with `prefix`.
  void load_from_model(const checkpoint::CheckpointReader& saved, const std::string& prefix);

 private:
  // An average, its source, and the tensor of the module that it may replace.
  struct Entry {
    std::string name;
    at::Tensor source;
    at::Tensor average;
    at::Tensor in_module;
    at::Tensor replaced;                  // the replaced tensor while the average is in the module
    std::optional<layout::Box> box = {};  // of `source` within its parameter
  };
  void take_loaded(const checkpoint::CheckpointReader& saved);

  const std::optional<double> decay_;
  const bool uses_buffers_;
  parallel::ParameterStore* store_ = nullptr;
  std::vector<Entry> weights_;
  std::vector<Entry> buffers_;
  int64_t updates_ = 0;
  std::shared_ptr<const checkpoint::CheckpointReader> loaded_;
  std::string updates_key_, prefix_, suffix_;  // of the names in `loaded_`
  bool is_in_module_ = false;
};

}  // namespace troika::train
