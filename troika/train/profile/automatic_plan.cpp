#include "troika/train/profile/automatic_plan.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/pipeline/stage_module.h"
#include "troika/plan/search/step_layout.h"
#include "troika/train/engine/placement.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/counted_blocks.h"
#include "troika/train/profile/measure_profile.h"
#include "troika/train/profile/plan_memory.h"
#include "troika/train/profile/searched_servers.h"
#include "troika/train/tuning/tuning.h"

namespace troika::train {

namespace {

using plan::StepFamily;
using plan::StepSettings;

constexpr size_t kMostProfiles = 3;

void require_searchable(const layout::Plan& plan, const std::string& warm_up) {
  std::string got;
  if (warm_up != layout::WithoutFlushes{}.warm_up) got = "pipeline.warm_up " + warm_up;
  if (plan.threads > 0 || !plan.keeps_replicas_equal()) got = "strategy " + plan.strategy;
  const auto& sums = plan.exchange.summation;
  if (sums.cross_barrier) got = "byteps.cross_barrier true";
  if (sums.asynchronous) got = "byteps.asynchronous true";
  if (sums.momentum > 0) got = fmt::format("byteps.momentum {}", sums.momentum);
  if (sums.local_sums != "plain") got = "byteps.local_sums " + sums.local_sums;
  if (plan.compression.codec != "none") got = "ddp.hook " + plan.compression.codec;
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

// A plan with these settings, of two stages if it is a pipeline without a tensor or context
// axis, to ask whether it can be run.
layout::Plan example_of(const StepSettings& settings, layout::StageWeights weights, bool is_uneven,
                        int ranks) {
  layout::Plan plan{.micro_batches = 2 * ranks, .recompute = settings.recompute ? "full" : "none"};
  if (settings.zero_stage > 0) {
    plan.exchange.method = layout::ExchangeMethod::zero;
    plan.exchange.zero_stage = settings.zero_stage;
  }
  if (settings.sums) plan.exchange.method = layout::ExchangeMethod::summation;
  plan.mesh = layout::Mesh(layout::Axis::data, ranks);
  if (const auto& axes = settings.axes; axes.ranks() > 1) {
    const bool is_pipeline = settings.family != StepFamily::one_stage || settings.zero_stage > 0;
    if (is_pipeline) plan.schedule = plan::schedule_name(StepFamily::pipeline, weights);
    std::string mesh = "data=-1";
    if (axes.context > 1) mesh += fmt::format(" context={}", axes.context);
    if (axes.tensor > 1) mesh += fmt::format(" tensor={}", axes.tensor);
    plan.mesh = layout::Mesh::parse(mesh, ranks);
    plan.stages.tensor_overlap = settings.tensor_overlap;
    return plan;
  }
  if (settings.family == StepFamily::one_stage) return plan;
  plan.schedule = plan::schedule_name(settings.family, weights);
  const int half = ranks / 2;
  plan.mesh =
      layout::Mesh::parse(is_uneven ? fmt::format("pipeline=2 data={}-1", ranks - 1)
                                    : fmt::format("pipeline={} data={}", ranks % 2 == 0 ? 2 : ranks,
                                                  ranks % 2 == 0 ? half : 1));
  return plan;
}

bool can_be_run(const StepSettings& settings, layout::StageWeights weights, bool is_uneven,
                int ranks) {
  if (is_uneven && ranks < 3) return false;  // stages of one replica each are even
  try {
    require_runnable(example_of(settings, weights, is_uneven, ranks), ranks);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Whether a run of these options may have a tensor or a context axis (require_plan_fits()).
bool may_cut_layers(const TrainOptions& options) {
  return options.optimizer.name != "adamw_8bit" && !options.ema.enabled && options.swa.swa_lrs == 0;
}

// The memory of profiles, and of other plans without a cut, follows from that of this strategy.
TrainOptions with_most_memory(const TrainOptions& options) {
  return with_strategy(options, strategies_by_memory().front());
}

bool reuses_parameters(const nn::ModelOptions& options) {
  const compat::FakeTensorGuard no_memory;
  const auto model = nn::make_model(options);
  std::set<std::string> seen;
  for (size_t block = 0; block < model->blocks().size(); ++block) {
    for (const auto& name : parallel::tensors_of_blocks(*model, block, block + 1)) {
      if (!seen.insert(name).second) return true;
    }
  }
  return false;
}

// The weights of pipelines without flushes, which are considered only if the configured strategy is
// one: their gradients are those of older weights.
layout::StageWeights weights_for(const TrainOptions& options, const layout::Plan& plan,
                                 const comm::Group& group) {
  if (!plan.is_asynchronous() || !reuses_parameters(options.model)) return plan.weights();
  if (group.rank() == 0) {
    log::warn(
        "blocks of the model share parameters, so the plan is searched among those with flushes");
  }
  return layout::StageWeights::synchronous;
}

// The precisions that take less memory than the configured one, and that the device supports.
std::vector<std::string> lower_precisions(const std::string& configured, at::DeviceType device) {
  const std::vector<std::vector<std::string>> decreasing{
      {"64"}, {"32"}, {"bf16-mixed", "16-mixed"}, {"bf16-true", "16-true"}};
  std::vector<std::string> lower;
  bool is_below = false;
  for (const auto& names : decreasing) {
    if (is_below && nn::is_supported(nn::parse_precision(names.front()), device)) {
      lower.push_back(names.front());
    }
    is_below = is_below || std::ranges::count(names, configured) > 0;
  }
  return lower;
}

TrainOptions with_step_plan(TrainOptions options, const plan::StepModel& model,
                            const plan::StepPlan& chosen, const OffloadTargets& offload,
                            const comm::Group& group) {
  const auto configured = resolve_plan(options, cluster_of(group));
  auto plan = plan::layout_of(model, chosen);
  if (chosen.settings.sums && servers_of(configured) > 0) {
    plan.exchange.servers = configured.exchange.servers;
    plan.exchange.summation = configured.exchange.summation;
  }
  plan.exchange.bucket_bytes = configured.exchange.bucket_bytes;
  plan.exchange.first_bucket_bytes = configured.exchange.first_bucket_bytes;
  plan.exchange.find_unused_parameters = configured.exchange.find_unused_parameters;
  plan.exchange.static_graph = configured.exchange.static_graph;
  plan.exchange.broadcast_buffers = configured.exchange.broadcast_buffers;
  if (chosen.settings.offloads_activations) plan.offload.activations = offload.activations;
  if (chosen.settings.offloads_optimizer) plan.offload.optimizer = offload.optimizer;
  const auto& profile = model.problem().profiles[chosen.settings.profile];
  options.data.global_batch_size =
      static_cast<int64_t>(profile.micro_batch) * plan.mesh.sample_shares();
  options.trainer.plan = plan.text();
  return with_plan(std::move(options));
}

// Measures profiles, and searches among those that it has measured.
class PlanFinder {
 public:
  PlanFinder(const TrainOptions& options, const data::Dataset& dataset, const comm::Group& group,
             const AutomaticPlanOptions& asked)
      : configured_(options),
        plain_(options),
        dataset_(dataset),
        group_(group),
        asked_(asked),
        targets_(offload_targets(options, group)),
        available_(memory_of_rank(options, group)) {
    const auto plan = resolve_plan(options, cluster_of(group));
    require_searchable(plan, options.pipeline.warm_up);
    problem_.cluster = searched_cluster(plan, group, asked.cluster);
    has_servers_ = servers_of(plan) > 0;
    problem_.global_batch =
        static_cast<double>(global_batch(options, plan.mesh.sample_shares()) * plan.micro_batches);
    problem_.memory_bytes = asked.memory_bytes ? asked.memory_bytes : available_;
    problem_.uses_all_devices = true;
    problem_.weights = weights_for(options, plan, group);
    problem_.cuts_layers = asked.cuts_layers && may_cut_layers(options);
    plain_.trainer.enable_model_summary = false;  // the run itself will log its choices
    plain_.offload.activations.clear();
    plain_.optimizer.offload.clear();
    plain_.model = tuned_model(plain_, dataset, group, run_folder(plain_));
  }

  void profile(const std::string& precision) {
    auto options = plain_;
    options.trainer.precision = precision;
    const auto sizes = micro_batch_sizes(samples(), group_.size());
    const auto needs = bytes_of_profiles(with_most_memory(options), dataset_, sizes, group_);
    for (size_t i = 0; i < sizes.size(); ++i) {
      ProfileOptions how{.micro_batch = sizes[i],
                         .seconds = asked_.seconds,
                         .block_by_block = asked_.block_by_block};
      if (available_ && needs[i] > *available_) {
        how.block_by_block = true;
        const double least =
            bytes_of_profile_by_blocks(with_most_memory(options), dataset_, sizes[i], group_);
        if (least > *available_) {
          note_too_large(precision, sizes[i], least);
          continue;
        }
      }
      has_parts_ = has_parts_ || how.block_by_block;
      // Without the tuned attention, which ranks of a context axis do not use.
      options.model = configured_.model;
      problem_.profiles.push_back(measure_profile(options, dataset_, group_, how));
    }
  }
  bool has_profiles() const { return !problem_.profiles.empty(); }
  // Whether a profile was measured block by block.
  bool has_parts() const { return has_parts_; }
  // Throws Error(usage) if nothing could be measured.
  void require_profiles() const {
    if (has_profiles()) return;
    throw Error("train", ErrorKind::usage,
                {.what = "a block of the model does not fit in a rank's memory, so it cannot be "
                         "measured",
                 .got = too_large_,
                 .expected = fmt::format("at most {}", human_bytes(*available_)),
                 .hint = "choose a smaller global batch, or fewer ranks on each machine"});
  }

  void measure_offload_of_all() {
    std::map<std::string, double> optimizers;  // by precision
    for (const auto& profile : problem_.profiles) {
      auto options = plain_;
      options.trainer.precision = profile.precision;
      if (!optimizers.contains(profile.precision)) {
        optimizers[profile.precision] = offloaded_optimizer_seconds(options, group_, targets_);
      }
      problem_.offload.push_back(
          {.optimizer = optimizers[profile.precision],
           .pass = offloaded_pass_seconds(options, dataset_, group_, targets_,
                                          static_cast<int64_t>(profile.micro_batch))});
    }
  }

  AutomaticPlan search() const {
    auto problem = problem_;
    const int ranks = group_.size();
    // SWA needs even stages for models with batch norms.
    const bool needs_even = configured_.trainer.sync_batchnorm || configured_.swa.swa_lrs > 0;
    const bool has_files = !targets_.optimizer.empty();
    const auto weights = problem.weights;
    const auto can_sum =
        profiles_for_sums(problem, Placement::of(configured_, group_).device.type(), has_servers_);
    problem.allows = [=, has_servers = has_servers_](const StepSettings& settings, bool is_uneven) {
      if (settings.sums ? !can_sum[settings.profile] : has_servers) return false;
      if (settings.offloads_optimizer && !has_files) return false;
      if (is_uneven && needs_even) return false;
      // A tied parameter could not be sharded over different numbers of replicas.
      if (is_uneven && settings.zero_stage > 0) return false;
      return can_be_run(settings, weights, is_uneven, ranks);
    };
    const auto memory = std::make_shared<const OneStageMemory>(
        with_most_memory(plain_), dataset_, problem.profiles, samples(),
        problem.offload.empty() ? nullptr : &targets_, group_);
    problem.one_stage_bytes = [memory](const StepSettings& settings) {
      return (*memory)(settings);
    };
    plan::StepModel model(std::move(problem));
    auto found = plan::search_steps(model);
    return {.model = std::move(model), .found = std::move(found), .offload = targets_};
  }

  void choose(AutomaticPlan& automatic) const {
    // Measured times differ by a few percent from one measurement to the next.
    constexpr double kMargin = 0.03;
    plan::prefer_simple(automatic.found, kMargin,
                        [&](plan::StepPlan& plan) { predict_memory(automatic.model, plan); });
  }

 private:
  int64_t samples() const { return static_cast<int64_t>(problem_.global_batch); }

  void note_too_large(const std::string& precision, int64_t size, double bytes) {
    too_large_ = fmt::format("{} for {} samples in {}", human_bytes(bytes), size, precision);
    if (group_.rank() == 0) log::info("not measured: a block needs {}", too_large_);
  }

  // Gives a pipeline or a plan with a tensor or a context axis the memory that the run will predict
  // for it.
  void predict_memory(const plan::StepModel& model, plan::StepPlan& plan) const {
    if (plan.is_whole()) return;  // has it already
    auto options = with_step_plan(configured_, model, plan, targets_, group_);
    if (plan.settings.axes.context == 1) options.model = plain_.model;
    const auto stages =
        predict_stages(options, dataset_, static_cast<int>(plan.stages.size()), group_);
    for (size_t i = 0; i < stages.size(); ++i) {
      plan.memory_bytes[i] = stages[i].step;
      if (!problem_.memory_bytes) continue;
      const double lacking = stages[i].most - *problem_.memory_bytes;
      plan.lacking_bytes = i == 0 ? lacking : std::max(plan.lacking_bytes, lacking);
    }
  }

  const TrainOptions& configured_;
  TrainOptions plain_;  // without offload, and with the attention of tuned_model()
  const data::Dataset& dataset_;
  const comm::Group& group_;
  const AutomaticPlanOptions& asked_;
  const OffloadTargets targets_;
  const std::optional<double> available_;  // bytes of a rank
  plan::StepProblem problem_;
  bool has_servers_ = false;  // were launched beside the ranks
  bool has_parts_ = false;
  std::string too_large_;  // the last profile that could not be measured
};

}  // namespace

size_t AutomaticPlan::stage_of(int rank) const {
  const auto mesh = plan::layout_of(model, chosen()).mesh;
  return static_cast<size_t>(mesh.coordinates(rank)[layout::Axis::pipeline]);
}

AutomaticPlan find_plan(const TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group, const AutomaticPlanOptions& asked) {
  PlanFinder finder(options, dataset, group, asked);
  const auto configured = nn::parse_precision(options.trainer.precision).name;
  std::vector<std::string> precisions;
  for (const auto& text : asked.precisions) {
    const auto name = nn::parse_precision(text).name;
    if (std::ranges::count(precisions, name) == 0) precisions.push_back(name);
  }
  if (precisions.empty()) precisions.push_back(configured);
  for (const auto& precision : precisions) finder.profile(precision);
  std::optional<AutomaticPlan> result;
  if (finder.has_profiles()) result = finder.search();
  if (!result || !plan::fits_whole(result->found)) {
    std::vector<std::string> more;
    if (asked.precisions.empty()) {
      more = lower_precisions(configured, Placement::of(options, group).device.type());
    }
    for (const auto& precision : more) finder.profile(precision);
    finder.require_profiles();
    // Offload is measured with the whole model.
    if (!finder.has_parts()) {
      finder.measure_offload_of_all();
      more.emplace_back("offload");
    }
    if (!result || !more.empty()) result = finder.search();
    result->forced = std::move(more);
  }
  finder.choose(*result);
  // The run that follows asks the system how much memory is left.
  ::malloc_trim(0);
  return *std::move(result);
}

TrainOptions with_found_plan(TrainOptions options, const AutomaticPlan& automatic,
                             const comm::Group& group) {
  const auto& chosen = automatic.chosen();
  if (!automatic.found.best) {
    const double room = *automatic.model.problem().memory_bytes;
    throw Error("train", ErrorKind::usage,
                {.what = "no plan for this model fits into memory",
                 .got = fmt::format("{} on a rank for the nearest one",
                                    human_bytes(room + chosen.lacking_bytes)),
                 .expected = fmt::format("at most {}, the memory of a rank", human_bytes(room)),
                 .hint = "smaller batches, more machines, or trainer.memory_check=off"});
  }
  return with_step_plan(std::move(options), automatic.model, chosen, automatic.offload, group);
}

}  // namespace troika::train
