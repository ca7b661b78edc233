#include "troika/train/profile/automatic_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/machine_memory.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/memory/prediction.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/measure_profile.h"

namespace troika::train {

namespace {

using plan::StepFamily;
using plan::StepSettings;

constexpr size_t kMostProfiles = 3;

void require_searchable(const layout::Plan& plan) {
  std::string got;
  if (plan.threads > 0 || !plan.keeps_replicas_equal()) got = "strategy " + plan.strategy;
  if (plan.compression.codec != "none") got = "ddp.hook " + plan.compression.codec;
  if (!plan.offload_activations.empty()) got = "offload.activations";
  if (!plan.offload_optimizer.empty()) got = "offload.optimizer";
  if (plan.sums_micro_batches && plan.micro_batches > 1) got = "a sum over micro-batches";
  if (got.empty()) return;
  throw Error("train", ErrorKind::usage,
              {.what = "a feature that the search for a plan does not know",
               .got = got,
               .expected = "an exchange of all gradients in each step, without it",
               .hint = "leave --plan auto out, or choose a strategy that averages gradients"});
}

// Samples of micro-batches on a rank: of one micro-batch on each rank, and halves of it.
std::vector<int64_t> micro_batch_sizes(int64_t samples, int ranks) {
  std::vector<int64_t> sizes;
  for (int64_t size = samples / ranks; size >= 1 && sizes.size() < kMostProfiles; size /= 2) {
    if (samples % (size * ranks) != 0) break;
    sizes.push_back(size);
    if (size % 2 != 0) break;
  }
  if (sizes.empty()) {
    throw Error("train", ErrorKind::usage,
                {.what = "samples of an optimizer step",
                 .got = std::to_string(samples),
                 .expected = fmt::format("a multiple of {}, the number of ranks", ranks)});
  }
  return sizes;
}

// A plan with these settings, of two stages if it is a pipeline, to ask whether it can be run.
layout::Plan example_of(const StepSettings& settings, bool is_uneven, int ranks) {
  layout::Plan plan{.micro_batches = 2};
  if (settings.zero_stage > 0) {
    plan.exchange.method = layout::ExchangeMethod::zero;
    plan.exchange.zero_stage = settings.zero_stage;
  }
  plan.mesh = layout::Mesh(layout::Axis::data, ranks);
  if (settings.family == StepFamily::one_stage) return plan;
  plan.schedule = plan::schedule_name(settings.family);
  const int half = ranks / 2;
  plan.mesh =
      layout::Mesh::parse(is_uneven ? fmt::format("pipeline=2 data={}-1", ranks - 1)
                                    : fmt::format("pipeline={} data={}", ranks % 2 == 0 ? 2 : ranks,
                                                  ranks % 2 == 0 ? half : 1));
  return plan;
}

bool can_be_run(const StepSettings& settings, bool is_uneven, int ranks) {
  if (is_uneven && ranks < 3) return false;  // stages of one replica each are even
  try {
    require_runnable(example_of(settings, is_uneven, ranks), ranks);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The bytes of a rank under plans of one stage on all ranks, as `troika memory` predicts them.
class OneStageMemory {
 public:
  // Predicts on rank 0 alone, because ranks may be threads of one process. `samples` are those of
  // an optimizer step. Collective; blocks.
  OneStageMemory(TrainOptions options, const data::Dataset& dataset,
                 const std::vector<layout::Profile>& profiles, int64_t samples,
                 const comm::Group& group)
      : bytes_(at::full({static_cast<int64_t>(profiles.size()), 2, kZeroStages}, kUnknown,
                        at::kDouble)) {
    group.barrier({.label = "memory of plans"});
    if (group.rank() == 0) predict(options, dataset, profiles, samples, group.size());
    group.broadcast(bytes_, 0, {.label = "memory of plans"}).wait();
  }

  std::optional<double> operator()(const StepSettings& settings) const {
    const double bytes = bytes_[static_cast<int64_t>(settings.profile)][settings.recompute ? 1 : 0]
                               [settings.zero_stage]
                                   .item<double>();
    return bytes == kUnknown ? std::nullopt : std::optional(bytes);
  }

 private:
  static constexpr int64_t kZeroStages = 4;  // with 0
  static constexpr double kUnknown = -1;

  void predict(TrainOptions& options, const data::Dataset& dataset,
               const std::vector<layout::Profile>& profiles, int64_t samples, int ranks) {
    MemoryPredictor predictor(options, dataset);
    for (int64_t i = 0; i < bytes_.size(0); ++i) {
      const auto& profile = profiles[static_cast<size_t>(i)];
      MemoryChoice choice{.strategy = {},
                          .precision = profile.precision,
                          .recompute = {},
                          .ranks = ranks,
                          .batch = static_cast<int64_t>(profile.micro_batch)};
      // The predictor reads these options.
      options.trainer.accumulate_grad_batches = samples / (choice.batch * ranks);
      for (const bool recompute : {false, true}) {
        choice.recompute = recompute ? "full" : "none";
        for (int64_t stage = 0; stage < kZeroStages; ++stage) {
          choice.strategy = strategies_by_memory().at(static_cast<size_t>(stage));
          if (!predictor.why_not(choice).empty()) continue;
          bytes_[i][recompute ? 1 : 0][stage] = predictor.predict(choice).training_peak();
        }
      }
    }
  }

  const at::Tensor bytes_;  // float64 [profiles, recompute, ZeRO stage]
};

// Rank 0's bytes for each rank of a machine.
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

}  // namespace

size_t AutomaticPlan::stage_of(int rank) const {
  const auto mesh = plan::layout_of(model, chosen()).mesh;
  return static_cast<size_t>(mesh.coordinates(rank)[layout::Axis::pipeline]);
}

AutomaticPlan find_plan(const TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group, double seconds) {
  const auto cluster = cluster_of(group);
  const auto configured = resolve_plan(options, cluster);
  require_searchable(configured);
  const int ranks = group.size();
  const int64_t samples =
      global_batch(options, configured.mesh.sample_shares()) * configured.micro_batches;
  plan::StepProblem problem{.cluster = cluster,
                            .global_batch = static_cast<double>(samples),
                            .memory_bytes = memory_of_rank(options, group),
                            .uses_all_devices = true};
  auto plain = options;
  plain.trainer.enable_model_summary = false;  // the run itself will log its choices
  for (const int64_t size : micro_batch_sizes(samples, ranks)) {
    problem.profiles.push_back(
        measure_profile(plain, dataset, group, {.micro_batch = size, .seconds = seconds}));
  }
  // SWA needs them for models with batch norms.
  const bool needs_even = options.trainer.sync_batchnorm || options.swa.swa_lrs > 0;
  problem.allows = [ranks, needs_even](const StepSettings& settings, bool is_uneven) {
    if (is_uneven && needs_even) return false;
    // A tied parameter could not be sharded over different numbers of replicas.
    if (is_uneven && settings.zero_stage > 0) return false;
    return can_be_run(settings, is_uneven, ranks);
  };
  plain = with_strategy(plain, strategies_by_memory().front());
  const auto memory =
      std::make_shared<const OneStageMemory>(plain, dataset, problem.profiles, samples, group);
  problem.one_stage_bytes = [memory](const StepSettings& settings) { return (*memory)(settings); };
  plan::StepModel model(std::move(problem));
  auto found = plan::search_steps(model);
  // Measured times differ by a few percent from one measurement to the next.
  constexpr double kMargin = 0.03;
  plan::prefer_simple(found, kMargin);
  return {.model = std::move(model), .found = std::move(found)};
}

TrainOptions with_found_plan(TrainOptions options, const AutomaticPlan& automatic,
                             const comm::Group& group) {
  const auto& chosen = automatic.chosen();
  if (!automatic.found.best) {
    throw Error("train", ErrorKind::usage,
                {.what = "no plan for this model fits into memory",
                 .got = fmt::format("{} on a rank for the nearest one",
                                    human_bytes(std::ranges::max(chosen.memory_bytes))),
                 .expected = fmt::format("at most {}, its share of what is left",
                                         human_bytes(*automatic.model.problem().memory_bytes)),
                 .hint = "smaller batches, more machines, or trainer.memory_check=off"});
  }
  const auto configured = resolve_plan(options, cluster_of(group));
  auto plan = plan::layout_of(automatic.model, chosen);
  plan.exchange.bucket_bytes = configured.exchange.bucket_bytes;
  plan.exchange.first_bucket_bytes = configured.exchange.first_bucket_bytes;
  plan.exchange.find_unused_parameters = configured.exchange.find_unused_parameters;
  plan.exchange.static_graph = configured.exchange.static_graph;
  plan.exchange.broadcast_buffers = configured.exchange.broadcast_buffers;
  const auto& profile = automatic.model.problem().profiles[chosen.settings.profile];
  options.data.global_batch_size =
      static_cast<int64_t>(profile.micro_batch) * plan.mesh.sample_shares();
  options.trainer.plan = plan.text();
  return with_plan(std::move(options));
}

}  // namespace troika::train
