#include "troika/train/profile/plan_memory.h"

#include <algorithm>
#include <filesystem>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/kept_bytes.h"

namespace troika::train {

namespace {

constexpr int64_t kZeroStages = 4;  // with 0
constexpr double kUnknown = -1;
constexpr const char* kLabel = "memory of plans";

// The most bytes that blocks have in memory at once if the activations of all others are in files:
// those of one block, and of the block before it, which are read ahead.
double bytes_of_window(const layout::Profile& profile) {
  double most = 0, before = 0;
  for (const auto& block : profile.blocks) {
    most = std::max(most, before + block.saved_bytes + block.workspace_bytes);
    before = block.saved_bytes;
  }
  return most;
}

plan::DeviceBytes bytes_of(const MemoryPrediction& prediction) {
  return {.step = prediction.training_peak(), .most = prediction.peak()};
}

// The prediction of a plan whose activations are in files except for `kept` bytes, from that of the
// plan without offload.
plan::DeviceBytes without_activations(MemoryPrediction prediction, double kept) {
  auto& step = prediction.step;
  step.activations = std::min(step.activations + step.workspace, kept);
  step.workspace = 0;
  return bytes_of(prediction);
}

}  // namespace

OneStageMemory::OneStageMemory(TrainOptions options, const data::Dataset& dataset,
                               const std::vector<layout::Profile>& profiles, int64_t samples,
                               bool offloads, const comm::Group& group)
    : bytes_(at::full({static_cast<int64_t>(profiles.size()), 2, 2, 2, kZeroStages, 2}, kUnknown,
                      at::kDouble)) {
  group.barrier({.label = kLabel});
  if (group.rank() == 0) predict(options, dataset, profiles, samples, offloads, group.size());
  group.broadcast(bytes_, 0, {.label = kLabel}).wait();
}

std::optional<plan::DeviceBytes> OneStageMemory::operator()(
    const plan::StepSettings& settings) const {
  const auto bytes = bytes_[static_cast<int64_t>(settings.profile)][settings.recompute ? 1 : 0]
                           [settings.offloads_activations ? 1 : 0]
                           [settings.offloads_optimizer ? 1 : 0][settings.zero_stage];
  const plan::DeviceBytes result{bytes[0].item<double>(), bytes[1].item<double>()};
  return result.step == kUnknown ? std::nullopt : std::optional(result);
}

void OneStageMemory::predict(TrainOptions& options, const data::Dataset& dataset,
                             const std::vector<layout::Profile>& profiles, int64_t samples,
                             bool offloads, int ranks) {
  MemoryPredictor predictor(options, dataset);
  const std::filesystem::path somewhere = std::filesystem::temp_directory_path();
  for (int64_t i = 0; i < bytes_.size(0); ++i) {
    const auto& profile = profiles[static_cast<size_t>(i)];
    MemoryChoice choice{.strategy = {},
                        .precision = profile.precision,
                        .recompute = {},
                        .ranks = ranks,
                        .batch = static_cast<int64_t>(profile.micro_batch)};
    // The predictor reads these options.
    options.trainer.accumulate_grad_batches = samples / (choice.batch * ranks);
    for (const int recompute : {0, 1}) {
      choice.recompute = recompute == 1 ? "full" : "none";
      double kept = 0;
      if (offloads) {
        options.trainer.precision = profile.precision;
        kept = bytes_of_window(profile) +
               kept_bytes(options, dataset, choice.batch, choice.recompute == "full");
      }
      for (const int optimizer : {0, 1}) {
        if (optimizer == 1 && (!offloads || options.optimizer.name == "adamw_8bit")) continue;
        options.optimizer.offload = optimizer == 1 ? somewhere.string() : "";
        for (int64_t stage = 0; stage < kZeroStages; ++stage) {
          choice.strategy = strategies_by_memory().at(static_cast<size_t>(stage));
          if (!predictor.why_not(choice).empty()) continue;
          const auto prediction = predictor.predict(choice);
          const auto note = [&](int activations, const plan::DeviceBytes& bytes) {
            const auto row = bytes_[i][recompute][activations][optimizer][stage];
            row[0].fill_(bytes.step);
            row[1].fill_(bytes.most);
          };
          note(0, bytes_of(prediction));
          if (offloads) note(1, without_activations(prediction, kept));
        }
      }
    }
  }
}

std::vector<plan::DeviceBytes> predict_stages(const TrainOptions& options,
                                              const data::Dataset& dataset, int stages,
                                              const comm::Group& group) {
  const auto bytes = at::full({stages, 2}, kUnknown, at::kDouble);
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    MemoryPredictor predictor(options, dataset);
    const auto choice = predictor.configured(group.size());
    if (predictor.why_not(choice).empty()) {
      const auto ranks = predictor.predict_ranks(choice);
      TROIKA_CHECK(static_cast<int>(ranks.size()) == stages, "a stage on each pipeline rank");
      for (int stage = 0; stage < stages; ++stage) {
        const auto known = bytes_of(ranks[static_cast<size_t>(stage)]);
        bytes[stage][0].fill_(known.step);
        bytes[stage][1].fill_(known.most);
      }
    }
  }
  group.broadcast(bytes, 0, {.label = kLabel}).wait();
  std::vector<plan::DeviceBytes> result;
  if (bytes[0][0].item<double>() == kUnknown) return result;
  for (int stage = 0; stage < stages; ++stage) {
    result.push_back({bytes[stage][0].item<double>(), bytes[stage][1].item<double>()});
  }
  return result;
}

}  // namespace troika::train
