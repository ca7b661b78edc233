// The mean of the weights of the last epochs, trained at a constant rate: stochastic weight
// averaging (Izmailov et al. 2018, arXiv 1803.05407, algorithm 1), as Lightning's
// StochasticWeightAveraging and PyTorch's SWALR do it.
#pragma once

#include <optional>
#include <vector>

#include "troika/train/callbacks/weight_average.h"
#include "troika/train/options/options.h"
#include "troika/train/run/callback.h"

namespace troika::train {

// From epoch swa_epoch_start on, the rate goes from where its schedule is to swa_lrs, epoch by
// epoch, and the weights that each ends with enter the mean. (Lightning takes those that each
// begins with, so what the last epoch learned never counts.) When the epochs are over, or a
// callback ended the run in them, the module gets the mean; the statistics of its batch norms are
// made anew by a pass over the training data, as the mean over the batches of all ranks
// (section 3.2); and the weights go to checkpoints/swa.safetensors. The module gets them when all
// callbacks have ended the training.
class Swa : public Callback {
 public:
  // Throws Error(usage) for an epoch that is neither a number below max_epochs nor a share.
  Swa(const SwaOptions& options, int64_t max_epochs);

  std::string name() const override { return "swa"; }
  // Throws Error(usage) for strategy dp where there are batch norms: its threads share no
  // statistics.
  void on_fit_start(FitContext& context) override;
  void on_before_optimizer_step(FitContext& context) override;
  void on_train_epoch_start(FitContext& context) override;
  void on_train_end(FitContext& context) override;
  void on_fit_end(FitContext& context) override;
  checkpoint::NamedTensors state() const override;
  // After on_fit_end: the model is the mean, unless another callback has replaced it, and the
  // weights to go on with are those that were trained.
  void replace_model(checkpoint::RankState& state) const override;
  void load_state(const checkpoint::CheckpointReader& saved, const std::string& prefix) override;

 private:
  double rate(int64_t epoch) const;

  const SwaOptions options_;
  const int64_t first_epoch_;
  const int64_t epochs_;
  torch::nn::Module* module_ = nullptr;
  WeightAverage average_{std::nullopt};  // of the epochs before the one that is on
  // The result, with the statistics of batch norms for it, and those that were trained.
  struct Mean {
    WeightAverage weights;
    std::vector<at::Tensor> renewed = {}, trained = {};
  };
  std::optional<Mean> mean_;
  double base_rate_ = 0;  // of the first step of first_epoch_ by the schedule; 0: not yet
};

// Makes running statistics of all batch norms anew while `run` makes forward passes: the mean over
// all batches of all ranks, as PyTorch's update_bn. Called by all ranks; blocks.
void renew_batch_norm(torch::nn::Module& module, const comm::Group& group,
                      const std::function<void()>& run);

}  // namespace troika::train
