#include "troika/layout/plan_axes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "troika/layout/errors/refuse.h"
#include "troika/layout/plan.h"
#include "troika/layout/schedules/complete.h"
#include "troika/layout/schedules/pairs.h"

namespace troika::layout {

namespace {

void verify_tensor_overlap(const Plan& plan) {
  const auto refuse_of = [](const std::string& of, const std::string& expected) {
    refuse("mesh.tensor_overlap of " + of, "true", expected + ", or false");
  };
  if (plan.mesh.size(Axis::tensor) == 1) {
    refuse_of("mesh.axes " + plan.mesh.text(), "a tensor axis of 2 or more ranks");
  }
  if (plan.is_asynchronous()) {
    refuse_of("schedule.name " + plan.schedule, "a schedule with flushes, as 1f1b");
  }
  if (plan.mesh.size(Axis::context) > 1) {
    refuse_of("mesh.axes " + plan.mesh.text(), "no context axis");
  }
  if (plan.micro_batches < 2) {
    refuse_of("1 micro-batch a step",
              "2 or more: trainer.accumulate_grad_batches or pipeline.micro_batches");
  }
  if (!plan.offload.activations.empty()) {
    refuse_of("memory.offload_activations " + plan.offload.activations, "no offload");
  }
}

}  // namespace

Schedule schedule_of_run(const Plan& plan) {
  auto schedule = schedule_of(plan);
  if (!plan.stages.tensor_overlap) return schedule;
  if (plan.schedule == kOneStageSchedule) return join_pairs(std::move(schedule));
  const bool gathers =
      plan.exchange.method == ExchangeMethod::zero && plan.exchange.zero_stage == 3;
  return complete(join_pairs(passes_of(schedule)), {}, gathers);
}

int64_t Plan::sharing_ranks(int place) const {
  if (exchange.method != ExchangeMethod::zero) return 1;
  if (exchange.zero_group > 0) return exchange.zero_group;
  return mesh.replicas(place) * mesh.size(Axis::context);
}

int64_t Plan::sharing_ranks() const {
  int64_t most = 1;
  for (int place = 0; place < mesh.size(Axis::pipeline); ++place) {
    most = std::max(most, sharing_ranks(place));
  }
  return most;
}

void verify_axes(const Plan& plan) {
  const auto& mesh = plan.mesh;
  const auto& stages = plan.stages;
  if (stages.sequence_parallel && std::ranges::count(mesh.axes(), Axis::tensor) == 0) {
    refuse("mesh.sequence_parallel of mesh.axes " + mesh.text(), "true", "a tensor axis, or false");
  }
  if (stages.tensor_overlap) verify_tensor_overlap(plan);
  const auto ring = ModelStages().context_method;
  if (stages.context_method != ring && std::ranges::count(mesh.axes(), Axis::context) == 0) {
    refuse("mesh.context_method of mesh.axes " + mesh.text(), stages.context_method,
           "a context axis, or " + ring);
  }
}

}  // namespace troika::layout
