#include "troika/plan/search/step_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troika/layout/stage_cut.h"
#include "troika/plan/search/step_order.h"

namespace troika::plan {

std::string schedule_name(StepFamily family, layout::StageWeights weights) {
  if (family == StepFamily::one_stage) return layout::kOneStageSchedule;
  if (family == StepFamily::no_flushes) {
    return std::string(layout::asynchronous_schedule_name(weights));
  }
  if (family == StepFamily::gpipe) return "gpipe";
  return family == StepFamily::zero_bubble ? "zb-h1" : "1f1b";
}

layout::Plan layout_of(const StepModel& model, const StepPlan& plan) {
  const auto& settings = plan.settings;
  const auto& profile = model.problem().profiles[settings.profile];
  const int micro_batches = model.micro_batches(settings.profile);
  const int replicas = plan.stages.front().replicas;
  const size_t stages = plan.stages.size();
  layout::Plan result{.strategy = "auto",
                      .stages = {.parameters = profile.model.parameters,
                                 .sequence_parallel = settings.axes.sequence,
                                 .tensor_overlap = settings.tensor_overlap},
                      .micro_batches = micro_batches / replicas,
                      .precision = profile.precision,
                      .recompute = settings.recompute ? "full" : "none"};
  if (settings.sums) {
    result.exchange.method = layout::ExchangeMethod::summation;
    result.exchange.summation.links = model.links_of_sums(settings, replicas);
    result.exchange.servers.count = static_cast<int64_t>(model.problem().cluster.spares.size());
  }
  if (settings.zero_stage > 0) {
    result.exchange.method = layout::ExchangeMethod::zero;
    result.exchange.zero_stage = settings.zero_stage;
  }
  layout::StageEnds ends;
  std::vector<int> counts;
  for (const auto& stage : plan.stages) {
    ends.push_back(stage.end);
    counts.push_back(stage.replicas);
  }
  std::vector<std::string> names;
  for (const size_t block : model.order()) names.push_back(profile.blocks[block].name);
  result.stages.cut = layout::cut_text(ends, names);
  const auto& axes = settings.axes;
  const auto mesh_of = [&](std::string text) {
    if (axes.context > 1) text += fmt::format(" context={}", axes.context);
    if (axes.tensor > 1) text += fmt::format(" tensor={}", axes.tensor);
    return layout::Mesh::parse(text);
  };
  if (stages == 1) {
    const bool is_stage = settings.has_stages();
    result.mesh = mesh_of(fmt::format("{}data={}", is_stage ? "pipeline=1 " : "", replicas));
    if (is_stage) result.schedule = schedule_name(StepFamily::pipeline, model.problem().weights);
    return result;
  }
  if (!is_even(plan.stages)) {
    result.mesh =
        layout::Mesh::parse(fmt::format("pipeline={} data={}", stages, fmt::join(counts, "-")));
    result.micro_batches = micro_batches;
    if (settings.family == StepFamily::no_flushes) {
      result.schedule = schedule_name(settings.family, model.problem().weights);
      return result;
    }
    result.schedule = layout::kCustomSchedule;
    result.actions = step_order(settings, plan.stages, micro_batches).text();
    return result;
  }
  const bool is_rows = settings.family == StepFamily::pipeline_rows;
  result.mesh = mesh_of(is_rows ? fmt::format("data={} pipeline={}", replicas, stages)
                                : fmt::format("pipeline={} data={}", stages, replicas));
  result.schedule = schedule_name(settings.family, model.problem().weights);
  return result;
}

}  // namespace troika::plan
