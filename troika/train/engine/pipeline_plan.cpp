#include "troika/train/engine/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan_places.h"
#include "troika/layout/recompute.h"
#include "troika/nn/state.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/context/context_table.h"
#include "troika/parallel/tensor/tensor_parallel.h"
#include "troika/train/options/options.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/task/task.h"

namespace troika::train {

using layout::Axis;

bool is_pipeline(const layout::Plan& plan) {
  return plan.schedule != layout::kOneStageSchedule;
}

parallel::PipelineOptions pipeline_options(const layout::Plan& plan) {
  return {.schedule = plan.is_asynchronous() ? layout::kAsynchronousOrder : plan.schedule,
          .micro_batches = static_cast<int>(plan.micro_batches),
          .weights = plan.weights(),
          .in_flight = static_cast<int>(plan.without_flushes.in_flight),
          .warm_up_by = layout::warm_up_of(plan.without_flushes.warm_up),
          .steps_by_replicas = plan.without_flushes.steps_by_replicas,
          .chunks = static_cast<int>(plan.chunks),
          .actions = plan.actions,
          .cut = plan.stages.cut,
          .tensor_overlap = plan.stages.tensor_overlap};
}

bool computes_outputs(const layout::Plan& plan, int rank) {
  if (!is_pipeline(plan)) return true;
  const auto schedule = layout::schedule_of(plan);
  int last_stage = -1, runner = 0;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const auto& action : schedule.ranks[r]) {
      if (action.stage <= last_stage) continue;
      last_stage = action.stage;
      runner = static_cast<int>(r);
    }
  }
  const auto place = plan.mesh.coordinates(rank);
  // Sums of one stage are over the data axis, which each rank of the other axes has for itself.
  const bool has_own_sums = plan.mesh.size(Axis::pipeline) == 1;
  return place[Axis::pipeline] == runner &&
         (has_own_sums || (place[Axis::tensor] == 0 && place[Axis::context] == 0));
}

const comm::Group& outputs_group(const comm::MeshGroups& groups) {
  return groups.mesh().size(Axis::pipeline) > 1 ? groups.world() : groups.data();
}

comm::Group samples_group(const comm::MeshGroups& groups) {
  return groups.mesh().has_uneven_stages() ? comm::local::alone() : groups.data();
}

namespace {

void require_same_blocks(const TrainOptions& options, const layout::Plan& plan, const Task& task) {
  if (plan.stages.cut.empty()) return;
  if (!task.has_blocks()) {
    throw Error("train", ErrorKind::usage,
                {.what = "a plan for a model of blocks",
                 .got = "stages.cut " + plan.stages.cut + " for a module without blocks",
                 .expected = "a plan without stages.cut"});
  }
  std::vector<std::string> names;
  for (const auto& block : task.blocks().blocks()) names.push_back(block.name);
  layout::parse_cut(plan.stages.cut, names, places_of_plan(options).of("stages.cut"));
}

// A recomputation that draws from LibTorch's generator would need the draws of one micro-batch to
// be consecutive. Models of the zoo draw by keys.
template <typename Refuse>
void require_overlap(const Task& task, const layout::Plan& plan, const Refuse& refuse) {
  const auto own = task.own_steps();
  if (std::ranges::find(own, "training_step") != own.end()) {
    refuse("mesh.tensor_overlap runs two forward passes at the same time",
           "a training_step() of the task", "a task without it");
  }
  if (plan.recompute != "none" && !task.blocks().options()) {
    refuse("mesh.tensor_overlap does not combine with trainer.recompute of own models",
           "trainer.recompute " + plan.recompute, "trainer.recompute none, or a model of the zoo");
  }
}

// All ranks throw the same error, before any communication.
void require_cuts_fit(const TrainOptions& options, const layout::Plan& plan, const Task& task) {
  const int ranks = plan.mesh.size(Axis::tensor), parts = plan.mesh.size(Axis::context);
  if (ranks == 1 && parts == 1) return;
  const std::string axis = ranks > 1 ? "a tensor axis" : "a context axis";
  const auto refuse = [&](const std::string& what, const std::string& got,
                          const std::string& expected) {
    throw Error("train", ErrorKind::usage,
                {.what = what,
                 .got = fmt::format("{} with mesh.axes {}{}", got, plan.mesh.text(),
                                    places_of_plan(options).of("mesh.axes")),
                 .expected = expected});
  };
  if (!task.has_blocks()) {
    refuse(
        axis + (ranks > 1 ? " cuts the layers of" : " cuts the samples of") + " a model of blocks",
        "a module without blocks", "a task made of an nn::Model");
  }
  // Its states are for blocks of elements of whole parameters.
  if (options.optimizer.name == "adamw_8bit") {
    refuse(axis + " does not combine with states of 8 bits yet", "optim.name adamw_8bit",
           "another optimizer");
  }
  if (options.ema.enabled || options.swa.swa_lrs > 0) {
    refuse(axis + " does not combine with averages of weights yet",
           options.ema.enabled ? "ema.enabled true" : "swa.swa_lrs above 0", "neither ema nor swa");
  }
  if (options.mesh.sequence_parallel && !plan.stages.sequence_parallel) {
    refuse("sequence parallelism is that of the plan",
           "mesh.sequence_parallel true and a plan without it",
           "mesh.sequence_parallel = true in the plan");
  }
  if (options.mesh.tensor_overlap && !plan.stages.tensor_overlap) {
    refuse("the overlap of two micro-batches is that of the plan",
           "mesh.tensor_overlap true and a plan without it",
           "mesh.tensor_overlap = true in the plan");
  }
  if (plan.stages.tensor_overlap) require_overlap(task, plan, refuse);
  // The times would be those of whole layers.
  const bool is_cut_by_time = is_pipeline(plan) && plan.stages.cut.empty() &&
                              options.trainer.plan.empty() && options.pipeline.cut_by == "time";
  if (is_cut_by_time || plan.schedule == layout::kAutomaticSchedule) {
    refuse(axis + " does not combine with measured times of blocks yet",
           is_cut_by_time ? "pipeline.cut_by time" : "pipeline.schedule auto",
           is_cut_by_time ? "pipeline.cut_by parameters, flops or bytes" : "a schedule by name");
  }
  if (ranks > 1) {
    parallel::require_splittable(task.blocks(), task.split_table(), ranks,
                                 {.sequence = plan.stages.sequence_parallel});
  }
  if (parts == 1) return;
  parallel::require_context(task.blocks(), task.split_table(), parts,
                            layout::parse_context_method(plan.stages.context_method), ranks);
}

// Stages step at different times, so nothing may depend on the gradients of all of them.
void require_asynchronous(const TrainOptions& options, const layout::Plan& plan) {
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw Error("train", ErrorKind::usage,
                {.what = "an option that a pipeline without flushes does not support",
                 .got = fmt::format("{} with schedule {}{}", got, plan.schedule,
                                    places_of_plan(options).of("schedule.name")),
                 .expected = expected});
  };
  const auto& trainer = options.trainer;
  if (trainer.gradient_clip_val > 0 && trainer.gradient_clip_algorithm == "norm") {
    refuse("trainer.gradient_clip_algorithm norm", "value, or stage_norm: the norm of each stage");
  }
  // A cast copy of the weights would keep their values up to the backward pass.
  if (plan.weights() == layout::StageWeights::unstashed && plan.precision == "bf16-mixed") {
    refuse("trainer.precision bf16-mixed", "32, or pipeline.stash_weights");
  }
  if (plan.precision == "16-mixed") refuse("trainer.precision 16-mixed", "32 or bf16-mixed");
}

}  // namespace

void require_same_model(const TrainOptions& options, const layout::Plan& plan, const Task& task) {
  if (plan.stages.parameters == 0) return;
  const int64_t parameters = nn::parameter_count(task.module());
  if (plan.stages.parameters == parameters) return;
  throw Error(
      "train", ErrorKind::usage,
      {.what = "a plan for another model",
       .got = fmt::format("a model of {} parameters", parameters),
       .expected = fmt::format("{}, as stages.parameters of the plan{}", plan.stages.parameters,
                               places_of_plan(options).of("stages.parameters")),
       .hint = "search a plan for this model, or set stages.parameters to 0"});
}

void require_tokens_fit(const layout::Plan& plan, const Task& task, const data::Dataset& dataset) {
  const int ranks = plan.mesh.size(Axis::tensor), parts = plan.mesh.size(Axis::context);
  const bool cuts_between_layers = plan.stages.sequence_parallel && ranks > 1;
  if ((!cuts_between_layers && parts == 1) || dataset.size() == 0) return;
  auto inputs = task.block_inputs(dataset.load(std::vector<int64_t>{0}, {})).front();
  if (parts > 1) {
    parallel::require_divisible_context(inputs, parts);
    inputs = inputs.narrow(1, 0, inputs.size(1) / parts);
  }
  if (cuts_between_layers) parallel::require_divisible_tokens(inputs, ranks);
}

void require_plan_fits(const TrainOptions& options, const layout::Plan& plan, const Task& task) {
  require_same_model(options, plan, task);
  require_same_blocks(options, plan, task);
  if (!is_pipeline(plan)) {
    require_cuts_fit(options, plan, task);
    return;
  }
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    throw Error("train", ErrorKind::usage,
                {.what = "an option that a pipeline does not support",
                 .got = fmt::format("{} with schedule {}{}", got, plan.schedule,
                                    places_of_plan(options).of("schedule.name")),
                 .expected = expected});
  };
  if (options.trainer.sync_batchnorm && plan.mesh.has_uneven_stages()) {
    refuse("trainer.sync_batchnorm on stages with different numbers of replicas",
           "as many replicas of each stage, or batch norms of micro-batches");
  }
  require_cuts_fit(options, plan, task);
  if (plan.is_asynchronous()) require_asynchronous(options, plan);
  if (plan.schedule == layout::kAutomaticSchedule) return;  // is made for the model
  const auto& model = task.blocks();
  const auto pipeline = pipeline_options(plan);
  const auto ends = parallel::ends_for(
      model, plan.stages.cut, parallel::passes_for(pipeline, plan.mesh, model.blocks().size()));
  if (!layout::recompute_budget(plan.recompute)) layout::recompute_plan(plan.recompute, ends);
}

}  // namespace troika::train
