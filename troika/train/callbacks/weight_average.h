// Weights averaged over the course of a run: PyTorch's torch.optim.swa_utils.AveragedModel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/nn/state.h"
#include "troika/optim/flat_parameters.h"
#include "troika/train/safetensors.h"

namespace troika::parallel {
class Exchange;
}

namespace troika::train {

struct FitContext;

// Of what this rank's optimizer steps: of whole parameters, of float32 masters, or with ZeRO of its
// share of them, so that the ranks share the average out too. The first update copies.
class WeightAverage {
 public:
  // Further updates: with a decay average = decay * average + (1 - decay) * weights, as
  // get_ema_multi_avg_fn; without one the mean of all, average += (weights - average) / (n + 1), as
  // get_swa_multi_avg_fn. With `buffers` those of the module are averaged alike, but integers
  // copied; they must be the same on all ranks.
  explicit WeightAverage(std::optional<double> decay, bool buffers = false)
      : decay_(decay), uses_buffers_(buffers) {}

  // Before the functions below; takes up what load_state() gave. The context's exchange and module
  // must outlive their use. Called by all ranks.
  void attach(const FitContext& context);

  void update();
  int64_t updates() const { return updates_; }

  // Puts the average in place of the module's weights, which must be there in whole, the same on
  // all ranks; nothing before the first update. Called by all ranks, outside of a pass; blocks.
  void put_into_module();
  // Takes that back, to the bit. Does not communicate.
  void take_back();

  // "updates", and `<parameter>.average` in whole, float32 for 16-bit types. Called by all ranks;
  // blocks. Tensors may share memory with this object.
  NamedTensors state() const;
  void load_state(const NamedTensors& state) { loaded_ = state; }

 private:
  // Average and what it is of.
  struct Entry {
    std::string name;
    at::Tensor source;
    at::Tensor average;
  };
  // In whole, with the suffix of state().
  NamedTensors gathered() const;
  void take_loaded();

  const std::optional<double> decay_;
  const bool uses_buffers_;
  const parallel::Exchange* exchange_ = nullptr;
  std::vector<nn::StateTensor> module_;  // what put_into_module() may change
  std::vector<Entry> weights_;
  std::vector<Entry> buffers_;
  int64_t updates_ = 0;
  NamedTensors loaded_;
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;  // of the module, what it was
};

}  // namespace troika::train
