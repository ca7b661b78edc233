// Stochastic weight averaging: the mean of the weights of the last epochs, trained at a constant
// rate (Izmailov et al. 2018, arXiv 1803.05407, algorithm 1). Follows Lightning's
// StochasticWeightAveraging and PyTorch's SWALR.
#pragma once

#include <optional>
#include <vector>

#include "troika/train/callbacks/weight_average.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// From epoch swa_epoch_start on, the learning rate moves, epoch by epoch, from its scheduled value
// to swa_lrs, and the weights at the end of each epoch enter the mean. (Lightning uses the weights
// at the beginning of each epoch and therefore ignores the last epoch.)
//
// When all epochs are done, or a callback has ended the run after swa_epoch_start, the mean becomes
// the model: batch-norm statistics are recomputed on the training data, as the mean over the
// batches of all ranks (section 3.2), and the weights are written to checkpoints/swa.safetensors.
// In a pipeline, each rank has the mean of its stages, and rank 0 collects them for this file.
// The module gets the mean in on_fit_end, after the on_train_end of all callbacks.
class Swa : public Callback {
 public:
  // Throws Error(usage) unless swa_epoch_start is an epoch below max_epochs or a fraction of
  // max_epochs.
  Swa(const SwaOptions& options, int64_t max_epochs);

  std::string name() const override { return "swa"; }
  // If the module has batch norms, throws Error(usage) for strategy dp, whose threads do not share
  // statistics, and for stages with different numbers of replicas.
  void on_fit_start(FitContext& context) override;
  void on_before_optimizer_step(FitContext& context) override;
  void on_train_epoch_start(FitContext& context) override;
  void on_train_end(FitContext& context) override;
  void on_fit_end(FitContext& context) override;
  checkpoint::NamedTensors state() const override;
  // After on_fit_end, stores the mean as the checkpoint's model, unless another callback has
  // replaced the model; the weights to resume from are the trained ones.
  void replace_model(checkpoint::RankState& state) const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  double rate(int64_t epoch) const;

  const SwaOptions options_;
  const int64_t first_epoch_;
  const int64_t epochs_;
  WeightAverage average_{std::nullopt};  // of the epochs before the current one
  // The mean of the weights, the module's batch-norm statistics, and for each of them the one
  // recomputed for the mean and the trained one.
  struct Mean {
    WeightAverage weights;
    std::vector<at::Tensor> statistics = {}, renewed = {}, trained = {};
  };
  std::optional<Mean> mean_;
  double base_rate_ = 0;  // the scheduled rate of the first step of first_epoch_; 0: not known yet
};

// Recomputes the running statistics of the batch norms that this rank holds while `run` makes
// forward passes: the mean over all batches of all ranks of `replicas`, as PyTorch's update_bn.
// Called by all ranks; blocks.
void renew_batch_norm(torch::nn::Module& module, const comm::Group& replicas,
                      const std::function<void()>& run);

}  // namespace troika::train
