#include "troika/layout/plan_without_flushes.h"

#include <fmt/format.h>

#include <string>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

void require_asynchronous(const Plan& plan) {
  const auto what = "schedule.name " + plan.schedule;
  // A recomputed forward pass would use other weights than the first one.
  if (plan.weights() == StageWeights::unstashed && plan.recompute != "none") {
    refuse(what, "memory.recompute " + plan.recompute, "none, or a schedule that stashes weights");
  }
  const auto pipeline = plan.asynchronous();
  const int64_t least = pipeline.least_micro_batches();
  const auto got = fmt::format("schedule.micro_batches {}", plan.micro_batches);
  const bool steps_by_replicas = plan.without_flushes.steps_by_replicas;
  if (steps_by_replicas &&
      (!plan.mesh.has_uneven_stages() || plan.weights() != StageWeights::stashed)) {
    refuse("schedule.steps_by_replicas",
           fmt::format("true with {} and mesh.axes {}", plan.schedule, plan.mesh.text()),
           "pipedream, on stages with different numbers of replicas");
  }
  if (steps_by_replicas && plan.micro_batches % least != 0) {
    refuse("schedule.steps_by_replicas", got,
           fmt::format("a multiple of {}, for whole steps of all stages", least));
  }
  if (plan.micro_batches < least) {
    const bool is_in_flight = plan.weights() == StageWeights::double_buffered;
    refuse(what, got,
           fmt::format("at least {}, {}", least,
                       is_in_flight ? "those in flight" : "one for each replica of a stage"));
  }
}

}  // namespace

void verify_without_flushes(const Plan& plan) {
  if (plan.is_asynchronous()) {
    require_asynchronous(plan);
    return;
  }
  const auto& values = plan.without_flushes;
  const auto refuse_value = [&](const char* name, const std::string& got, const char* expected) {
    refuse(fmt::format("schedule.{} of schedule.name {}", name, plan.schedule), got, expected);
  };
  if (values.in_flight != 1) refuse_value("in_flight", std::to_string(values.in_flight), "1");
  if (values.warm_up != WithoutFlushes().warm_up) {
    refuse_value("warm_up", values.warm_up, "runtime");
  }
  if (values.steps_by_replicas) refuse_value("steps_by_replicas", "true", "false");
}

AsynchronousPipeline Plan::asynchronous() const {
  AsynchronousPipeline result{.weights = weights(),
                              .micro_batches = micro_batches,
                              .stages = mesh.size(Axis::pipeline),
                              .in_flight = without_flushes.in_flight,
                              .warm_up_by = warm_up_of(without_flushes.warm_up),
                              .steps_by_replicas = without_flushes.steps_by_replicas};
  for (int s = 0; mesh.has_uneven_stages() && s < result.stages; ++s) {
    result.replicas.push_back(mesh.replicas(s));
  }
  return result;
}

}  // namespace troika::layout
