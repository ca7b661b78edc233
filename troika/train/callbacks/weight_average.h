// Weights averaged over the course of a run: PyTorch's torch.optim.swa_utils.AveragedModel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/checkpoint/reader.h"
#include "troika/nn/state.h"
#include "troika/parallel/parameter_store.h"

namespace troika::checkpoint {
struct RankState;
}

namespace troika::train {

struct FitContext;

// Averages what this rank's optimizer steps: parameters, float32 masters, or with ZeRO its
// share of them, so that the ranks share the average out too. The first update copies.
class WeightAverage {
 public:
  // Further updates: with a decay average = decay * average + (1 - decay) * weights, as
  // get_ema_multi_avg_fn; without one the mean of all, average += (weights - average) / (n + 1), as
  // get_swa_multi_avg_fn. With `buffers` those of the module are averaged alike, but integers
  // copied; they must be the same on all ranks.
  explicit WeightAverage(std::optional<double> decay, bool buffers = false)
      : decay_(decay), uses_buffers_(buffers) {}

  // Before the functions below; begins anew, or with what load_state() has. The context's store
  // and module must outlive their use. Called by all ranks.
  void attach(const FitContext& context);

  void update();
  int64_t updates() const { return updates_; }
  bool is_in_module() const { return is_in_module_; }
  // The same average in memory of its own, attached as this one; not while this is in the module.
  WeightAverage copy() const;

  // Puts the average in place of the module's weights, which must be the same on all ranks; nothing
  // before the first update. Called by all ranks, outside of a pass; blocks.
  void put_into_module();
  // Takes that back, to the bit. Called by all ranks; blocks.
  void take_back();
  // The same of what this rank steps alone, which is all where ranks share nothing out.
  void take_back_alone();

  // "updates", and `<parameter>.average`, float32 for 16-bit types: of what this rank steps.
  // Tensors may share memory with this object.
  checkpoint::NamedTensors state() const;
  // attach() reads the part that this rank steps.
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix);

  // Makes the average the model of a checkpoint, and adds the weights behind kRawPrefix, to go on
  // with; nothing before the first update. Tensors share memory with this object and the module.
  void put_into(checkpoint::RankState& state) const;
  // "updates" alone, for a state() beside put_into().
  checkpoint::NamedTensors count() const;
  // attach() takes the average from the model, and what count() gave from behind `prefix`.
  void load_from_model(const checkpoint::CheckpointReader& saved, const std::string& prefix);

 private:
  // Average, what it is of, and the part of the module that it may replace.
  struct Entry {
    std::string name;
    at::Tensor source;
    at::Tensor average;
    at::Tensor in_module;
    at::Tensor replaced;                  // what that was, while the average is there
    std::optional<layout::Box> box = {};  // that `source` is of its parameter
  };
  void take_loaded(const checkpoint::CheckpointReader& saved);

  const std::optional<double> decay_;
  const bool uses_buffers_;
  parallel::ParameterStore* store_ = nullptr;
  std::vector<Entry> weights_;
  std::vector<Entry> buffers_;
  int64_t updates_ = 0;
  std::optional<checkpoint::CheckpointReader> loaded_;
  std::string updates_key_, prefix_, suffix_;  // of names in it
  bool is_in_module_ = false;
};

}  // namespace troika::train
