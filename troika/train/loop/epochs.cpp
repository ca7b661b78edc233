#include "troika/train/loop/epochs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/train/engine/pipeline_plan.h"

namespace troika::train {

Epochs::Epochs(const RunSetup& setup)
    : setup_(setup),
      batch_(train::global_batch(setup.options, setup.plan.mesh.sample_shares())),
      trained_samples_(setup.plan.steps_on_all_samples() ? setup.training.size() : batch_),
      sampler_({.size = setup.training.size(),
                .global_batch = batch_,
                .seed = static_cast<uint64_t>(setup.options.run.seed),
                .ranks = {samples_group(setup.groups).rank(), samples_group(setup.groups).size()}}),
      limits_(make_limits(setup.options,
                          setup.plan.steps_on_all_samples() ? 1 : sampler_.steps_left({}),
                          (setup.validation.size() + batch_ - 1) / batch_)) {}

int64_t Epochs::steps_per_epoch() const {
  // The last step of an epoch may have fewer micro-batches.
  const int64_t micro_batches = setup_.plan.micro_batches;
  return (limits_.micro_batches + micro_batches - 1) / micro_batches;
}

int64_t Epochs::planned_steps() const {
  const auto& trainer = setup_.options.trainer;
  if (trainer.max_epochs < 0) return std::max<int64_t>(trainer.max_steps, 0);
  const int64_t steps = steps_per_epoch() * trainer.max_epochs;
  return trainer.max_steps < 0 ? steps : std::min(steps, trainer.max_steps);
}

bool Epochs::is_beyond_limits() const {
  const auto& limits = setup_.options.trainer;
  return (limits.max_steps >= 0 && at_.step > limits.max_steps) ||
         (limits.max_epochs >= 0 && at_.epoch >= limits.max_epochs);
}

std::string Epochs::number() const {
  const int64_t all = setup_.options.trainer.max_epochs;
  return all < 0 ? fmt::format("{}", at_.epoch + 1) : fmt::format("{}/{}", at_.epoch + 1, all);
}

int64_t Epochs::data_epoch() const {
  return overfits(setup_.options) ? 0 : at_.epoch;
}

int64_t Epochs::micro_batches_left() const {
  const int64_t left = sampler_.steps_left(sampler_state());
  if (limits_.micro_batches == sampler_.steps_left({})) return left;
  // The position in a checkpoint of another batch size may be beyond the limit.
  const int64_t allowed = (limits_.micro_batches * batch_ - at_.position) / batch_;
  return std::clamp(allowed, int64_t{0}, left);
}

int64_t Epochs::micro_batches_to_train() const {
  const int64_t left = micro_batches_left();
  const int64_t max_steps = setup_.options.trainer.max_steps;
  if (max_steps < 0) return left;
  const int64_t steps = max_steps - at_.step;
  return std::min(left, std::max<int64_t>(steps * setup_.plan.micro_batches - at_.micro_batch, 1));
}

data::Loader Epochs::load(const data::SamplerState& from, int64_t count, c10::DeviceType device,
                          const std::optional<quorum::Share>& share) const {
  auto batches = sampler_.batches(from);
  batches.resize(static_cast<size_t>(count));
  if (share) {
    for (auto& batch : batches) {
      batch = {batch.begin() + share->first, batch.begin() + share->first + share->count};
    }
  }
  return data::Loader(setup_.training, std::move(batches), sampler_.augmentation_seed(from.epoch),
                      loader_options(setup_.options, device));
}

data::Loader Epochs::load_next(int64_t count, c10::DeviceType device) const {
  return load(sampler_state(), count, device, share_);
}

data::Loader Epochs::load_all(c10::DeviceType device) const {
  return load({data_epoch(), 0}, limits_.micro_batches, device);
}

data::Batch Epochs::load_again(const StepLoss& loss) const {
  return setup_.training.load(loss.samples, sampler_.augmentation_seed(loss.epoch));
}

void Epochs::leave_complete_epoch() {
  if (micro_batches_left() > 0) return;
  ++at_.epoch;
  at_.position = 0;
}

}  // namespace troika::train
