// The epochs of a run: their micro-batches, and how far the run has come in them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "troika/data/loader.h"
#include "troika/data/sampler.h"
#include "troika/quorum/wire.h"
#include "troika/train/loop/run_setup.h"
#include "troika/train/options/limits.h"
#include "troika/train/run/train_progress.h"
#include "troika/train/task/step_losses.h"

namespace troika::train {

// Does not communicate. Not thread-safe.
class Epochs {
 public:
  // `setup` must outlive this object. Throws Error(usage) if the options' batch and limits do not
  // fit the data.
  explicit Epochs(const RunSetup& setup);

  TrainProgress& at() { return at_; }
  const TrainProgress& at() const { return at_; }
  const Limits& limits() const { return limits_; }
  // Samples of a micro-batch over all ranks.
  int64_t global_batch() const { return batch_; }
  // Samples that a micro-batch stands for: all, in a step on all samples.
  int64_t trained_samples() const { return trained_samples_; }

  int64_t steps_per_epoch() const;
  // The number of optimizer steps of the whole run; 0: a time limit ends it.
  int64_t planned_steps() const;
  // Whether the run, saved under greater limits, is already beyond this run's limits.
  bool is_beyond_limits() const;
  // The number of the current epoch, for example "2/10"; counts from 1.
  std::string number() const;
  // The epoch whose samples are trained on: always the first with trainer.overfit_batches.
  int64_t data_epoch() const;

  // Micro-batches left in the epoch.
  int64_t micro_batches_left() const;
  // The same, up to trainer.max_steps. An unfinished step has at least one more micro-batch.
  int64_t micro_batches_to_train() const;
  // Micro-batches of the epoch already trained on.
  int64_t micro_batches_done() const { return at_.position / batch_; }

  // From now on, load_next() loads this part of each micro-batch only: of a quorum. Returns
  // whether it is another part than before.
  bool take_share(const quorum::Share& share) { return !(std::exchange(share_, share) == share); }
  // Loads this rank's next `count` micro-batches of the epoch, for a device of this type.
  data::Loader load_next(int64_t count, c10::DeviceType device) const;
  // Loads this rank's micro-batches of the whole epoch, for a device of this type.
  data::Loader load_all(c10::DeviceType device) const;
  // Loads the micro-batch of a loss again. The loss must have the indices of its samples.
  data::Batch load_again(const StepLoss& loss) const;

  // Called when a micro-batch, the last of an optimizer step if `ends_step`, was trained on. The
  // micro-batches of a peer of a swarm are not those of the epoch: its position is that of steps.
  void advance(bool ends_step) {
    if (ends_step || !setup_.swarm) {
      at_.position += batch_;
      at_.samples += trained_samples_;
    }
    at_.micro_batch = ends_step ? 0 : at_.micro_batch + 1;
    if (ends_step) ++at_.step;
  }
  // Goes to the beginning of the next epoch if no micro-batch is left.
  void leave_complete_epoch();

 private:
  data::SamplerState sampler_state() const { return {data_epoch(), at_.position}; }
  data::Loader load(const data::SamplerState& from, int64_t count, c10::DeviceType device,
                    const std::optional<quorum::Share>& share = {}) const;

  const RunSetup& setup_;
  const int64_t batch_;
  const int64_t trained_samples_;
  const data::Sampler sampler_;
  const Limits limits_;
  TrainProgress at_;
  std::optional<quorum::Share> share_;
};

}  // namespace troika::train
