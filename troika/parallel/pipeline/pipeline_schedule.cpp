#include "troika/parallel/pipeline/pipeline_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/pairs.h"
#include "troika/layout/schedules/segment.h"
#include "troika/layout/schedules/table.h"

namespace troika::parallel {

namespace {

using layout::Action;
using layout::ActionKind;

[[noreturn]] void refuse(const std::string& what, const std::string& got,
                         const std::string& expected) {
  throw Error("parallel", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

int most_of(const layout::Schedule& passes, int Action::*number) {
  int most = -1;
  for (const auto& actions : passes.ranks) {
    for (const auto& action : actions) most = std::max(most, action.*number);
  }
  return most;
}

int stages_of(const layout::Schedule& passes) {
  return most_of(passes, &Action::stage) + 1;
}

int micro_batches_of(const layout::Schedule& passes) {
  return most_of(passes, &Action::micro_batch) + 1;
}

bool is_asynchronous(const PipelineOptions& options) {
  return options.weights != layout::StageWeights::synchronous;
}

void require_asynchronous(const PipelineOptions& options, const layout::Mesh& mesh) {
  const auto what = fmt::format("{} (a pipeline without flushes)",
                                layout::asynchronous_schedule_name(options.weights));
  if (options.schedule != layout::kAsynchronousOrder || !options.actions.empty()) {
    refuse(what, options.actions.empty() ? "schedule " + options.schedule : "a custom schedule",
           "schedule 1f1b");
  }
  if (options.shards_over_replicas) refuse(what, "shards (ZeRO)", "whole parameters");
  const auto least = asynchronous_pipeline(options, mesh).least_micro_batches();
  const bool must_divide = options.steps_by_replicas;
  if (options.micro_batches < least || (must_divide && options.micro_batches % least != 0)) {
    refuse(what, fmt::format("{} micro-batches in a step", options.micro_batches),
           fmt::format("{} {}", must_divide ? "a multiple of" : "at least", least));
  }
}

void require_cuts_fit(const PipelineOptions& options, const layout::Mesh& mesh) {
  const bool cuts_layers = mesh.size(layout::Axis::tensor) > 1;
  if (options.tensor_overlap && (!cuts_layers || mesh.size(layout::Axis::context) > 1)) {
    refuse("two forward passes at the same time", mesh.text(),
           "a tensor axis of 2 or more ranks, and no context axis");
  }
  if (!cuts_layers && mesh.size(layout::Axis::context) == 1) return;
  const auto refuse_with = [&](const std::string& with, const std::string& expected) {
    refuse(fmt::format("a {} axis does not combine with {} yet", cuts_layers ? "tensor" : "context",
                       with),
           mesh.text(), expected);
  };
  if (mesh.has_uneven_stages()) {
    refuse_with("stages of different numbers of replicas", "as many replicas of each stage");
  }
  if (is_asynchronous(options)) {
    refuse_with(fmt::format("{} (a pipeline without flushes)",
                            layout::asynchronous_schedule_name(options.weights)),
                "a schedule with flushes, as 1f1b");
  }
}

layout::Schedule order_for(const PipelineOptions& options, const layout::Mesh& mesh,
                           size_t blocks) {
  const int ranks = mesh.size(layout::Axis::pipeline);
  if (!options.actions.empty()) {
    auto passes =
        layout::passes_of(layout::read_schedule(options.actions, "the pipeline's schedule"));
    const int micro_batches = micro_batches_of(passes);
    if (micro_batches == options.micro_batches) return passes;
    refuse("a schedule for another number of micro-batches", std::to_string(micro_batches),
           std::to_string(options.micro_batches));
  }
  const auto& row = layout::schedule_row(options.schedule);
  const auto shape =
      layout::require_domain(row, {.ranks = ranks,
                                   .micro_batches = options.micro_batches,
                                   .chunks = options.chunks,
                                   .blocks = options.cut.empty() ? static_cast<int>(blocks) : 0});
  if (options.tensor_overlap) return layout::order_in_pairs(row, shape);
  if (!is_asynchronous(options)) return row.order(shape);
  const auto pipeline = asynchronous_pipeline(options, mesh);
  const auto in_flight = static_cast<int>(pipeline.warm_up(0)) + options.in_flight;
  return layout::asynchronous_order(pipeline, shape.micro_batches + 2 * in_flight);
}

// Messages between two stages have no numbers: both stages must take micro-batches in one order.
void require_one_order(const layout::Schedule& passes) {
  std::map<std::pair<bool, int>, std::vector<int>> orders;  // of forward passes, or not; by stage
  for (const auto& actions : passes.ranks) {
    for (const auto& action : actions) {
      if (action.kind == ActionKind::backward_weight) continue;
      orders[{action.kind == ActionKind::forward, action.stage}].push_back(action.micro_batch);
    }
  }
  if (!orders.contains({false, 0})) {
    refuse("a schedule that does not train", "forward passes alone", "backward passes, too");
  }
  for (const auto& [key, order] : orders) {
    if (order == orders.at({key.first, 0})) continue;
    refuse(fmt::format("stages take micro-batches in different orders in their {} passes",
                       key.first ? "forward" : "backward"),
           fmt::format("{} on stage {}", fmt::join(order, " "), key.second),
           fmt::format("{}, as on stage 0", fmt::join(orders.at({key.first, 0}), " ")));
  }
}

void require_runnable(const layout::Schedule& passes, const layout::Mesh& mesh) {
  require_one_order(passes);
  for (const auto axis : mesh.axes()) {
    if (axis != layout::Axis::expert || mesh.size(axis) == 1) continue;
    refuse("a pipeline on another axis than pipeline, data, tensor and context", mesh.text(),
           "these four");
  }
  const int micro_batches = micro_batches_of(passes);
  for (int r = 0; mesh.has_uneven_stages() && r < mesh.size(layout::Axis::pipeline); ++r) {
    if (mesh.replicas(r) <= micro_batches) continue;
    refuse("a pipeline rank with more replicas than micro-batches",
           fmt::format("{} replicas, {} micro-batches", mesh.replicas(r), micro_batches),
           "a micro-batch for each replica");
  }
}

}  // namespace

layout::Schedule passes_for(const PipelineOptions& options, const layout::Mesh& mesh,
                            size_t blocks) {
  if (is_asynchronous(options)) require_asynchronous(options, mesh);
  require_cuts_fit(options, mesh);
  auto passes = order_for(options, mesh, blocks);
  require_runnable(passes, mesh);
  return options.tensor_overlap ? layout::join_pairs(std::move(passes)) : passes;
}

layout::AsynchronousPipeline asynchronous_pipeline(const PipelineOptions& options,
                                                   const layout::Mesh& mesh) {
  layout::AsynchronousPipeline result{.weights = options.weights,
                                      .micro_batches = options.micro_batches,
                                      .stages = mesh.size(layout::Axis::pipeline),
                                      .in_flight = options.in_flight,
                                      .warm_up_by = options.warm_up_by,
                                      .steps_by_replicas = options.steps_by_replicas};
  for (int s = 0; mesh.has_uneven_stages() && s < result.stages; ++s) {
    result.replicas.push_back(mesh.replicas(s));
  }
  return result;
}

layout::StageEnds ends_for(const nn::Model& model, const std::string& cut,
                           const layout::Schedule& passes) {
  const int stages = stages_of(passes);
  std::vector<std::string> names;
  std::vector<double> elements;
  for (const auto& block : model.blocks()) {
    names.push_back(block.name);
    double count = 0;
    for (const auto& [name, tensor] : model.owned_state(block)) {
      count += static_cast<double>(tensor.numel());
    }
    elements.push_back(count);
  }
  const auto ends =
      cut.empty() ? layout::balanced_cut(elements, stages) : layout::parse_cut(cut, names);
  if (static_cast<int>(ends.size()) == stages) return ends;
  refuse(fmt::format("the cut `{}` is for another number of stages", cut),
         std::to_string(ends.size()), fmt::format("{}, those of the schedule", stages));
}

}  // namespace troika::parallel
