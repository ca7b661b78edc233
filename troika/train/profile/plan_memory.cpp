#include "troika/train/profile/plan_memory.h"

#include <algorithm>
#include <functional>
#include <map>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/machine_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/precision.h"
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

// As check_memory_of(): a trial that fails only leaves the memory unknown.
void where_possible(const std::function<void()>& predict) {
  try {
    predict();
  } catch (const Error& problem) {
    if (problem.kind() != ErrorKind::failure) throw;
    log::warn("memory is not predicted: {}", problem.what());
  }
}

plan::DeviceBytes bytes_of(const MemoryPrediction& prediction) {
  return {.step = prediction.training_peak(), .most = prediction.peak()};
}

}  // namespace

OneStageMemory::OneStageMemory(TrainOptions options, const data::Dataset& dataset,
                               const std::vector<layout::Profile>& profiles, int64_t samples,
                               const OffloadTargets* offload, const comm::Group& group)
    : bytes_(at::full({static_cast<int64_t>(profiles.size()), 2, 2, 2, kZeroStages, 2}, kUnknown,
                      at::kDouble)) {
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    where_possible([&] { predict(options, dataset, profiles, samples, offload, group.size()); });
  }
  group.broadcast(bytes_, 0, {.label = kLabel}).wait();
}

std::optional<plan::DeviceBytes> OneStageMemory::operator()(
    const plan::StepSettings& settings) const {
  if (settings.axes.ranks() > 1 || settings.sums) return std::nullopt;
  const auto bytes = bytes_[static_cast<int64_t>(settings.profile)][settings.recompute ? 1 : 0]
                           [settings.offloads_activations ? 1 : 0]
                           [settings.offloads_optimizer ? 1 : 0][settings.zero_stage];
  const plan::DeviceBytes result{bytes[0].item<double>(), bytes[1].item<double>()};
  return result.step == kUnknown ? std::nullopt : std::optional(result);
}

void OneStageMemory::predict(TrainOptions& options, const data::Dataset& dataset,
                             const std::vector<layout::Profile>& profiles, int64_t samples,
                             const OffloadTargets* offload, int ranks) {
  MemoryPredictor predictor(options, dataset);
  for (int64_t i = 0; i < bytes_.size(0); ++i) {
    const auto& profile = profiles[static_cast<size_t>(i)];
    // Passes are predicted on the CPU.
    if (!nn::is_supported(nn::parse_precision(profile.precision), at::kCPU)) continue;
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
      if (offload) {
        options.trainer.precision = profile.precision;
        kept = bytes_of_window(profile) +
               kept_bytes(options, dataset, choice.batch, choice.recompute == "full");
      }
      for (const int optimizer : {0, 1}) {
        if (optimizer == 1 && (!offload || offload->optimizer.empty())) continue;
        options.optimizer.offload = optimizer == 1 ? offload->optimizer : "";
        for (int64_t stage = 0; stage < kZeroStages; ++stage) {
          choice.strategy = strategies_by_memory().at(static_cast<size_t>(stage));
          if (!predictor.why_not(choice).empty()) continue;
          for (const int activations : {0, 1}) {
            if (activations == 1 && !offload) continue;
            auto offloaded = choice;
            if (activations == 1) offloaded.most_in_pass = kept;
            const auto bytes = bytes_of(predictor.predict(offloaded));
            const auto row = bytes_[i][recompute][activations][optimizer][stage];
            row[0].fill_(bytes.step);
            row[1].fill_(bytes.most);
          }
        }
      }
    }
  }
}

std::optional<double> memory_of_rank(const TrainOptions& options, const comm::Group& group) {
  if (options.trainer.memory_check == "off") return std::nullopt;
  const auto& nodes = group.nodes();
  std::map<int, int> counts;
  for (const int node : nodes) ++counts[node];
  const int most = std::ranges::max_element(counts, {}, &std::pair<const int, int>::second)->second;
  const auto left = memory::available();
  // Beyond tensors, a process needs memory for libraries and for what malloc() keeps.
  constexpr double kForTensors = 0.9;
  const auto bytes = at::full(
      {1}, left ? kForTensors * static_cast<double>(left->bytes) / most : 0.0, at::kDouble);
  group.broadcast(bytes, 0, {.label = "memory of a rank"}).wait();
  if (bytes.item<double>() == 0) return std::nullopt;
  return bytes.item<double>();
}

std::vector<double> bytes_of_profiles(const TrainOptions& options, const data::Dataset& dataset,
                                      const std::vector<int64_t>& sizes, const comm::Group& group) {
  const auto bytes = at::zeros({static_cast<int64_t>(sizes.size())}, at::kDouble);
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    where_possible([&] {
      MemoryPredictor predictor(options, dataset);
      for (size_t i = 0; i < sizes.size(); ++i) {
        const MemoryChoice choice{.strategy = strategies_by_memory().front(),
                                  .precision = options.trainer.precision,
                                  .recompute = "none",
                                  .ranks = group.size(),
                                  .batch = sizes[i]};
        if (!predictor.why_not(choice).empty()) continue;
        const auto prediction = predictor.predict(choice);
        // The optimizer is measured on copies of the parameters.
        bytes[static_cast<int64_t>(i)].fill_(prediction.training_peak() +
                                             prediction.step.parameters);
      }
    });
  }
  group.broadcast(bytes, 0, {.label = kLabel}).wait();
  return {bytes.data_ptr<double>(), bytes.data_ptr<double>() + sizes.size()};
}

std::vector<plan::DeviceBytes> predict_stages(const TrainOptions& options,
                                              const data::Dataset& dataset, int stages,
                                              const comm::Group& group) {
  const auto bytes = at::full({stages, 2}, kUnknown, at::kDouble);
  group.barrier({.label = kLabel});
  if (group.rank() == 0) {
    where_possible([&] {
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
    });
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
