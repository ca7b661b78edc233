#include "troika/train/callbacks/exception_checkpoint.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/checkpoint/resume.h"
#include "troika/layout/plan.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

bool failed_by_itself(const std::exception& problem) {
  const auto* error = dynamic_cast<const Error*>(&problem);
  return !error || (error->kind() != ErrorKind::peer && error->kind() != ErrorKind::timeout);
}

}  // namespace

void ExceptionCheckpoint::on_exception(FitContext& context, const std::exception& problem) {
  const int rank = context.group.rank();
  if (rank != 0 && !failed_by_itself(problem)) return;
  const auto checkpoints = context.folder / "checkpoints";
  const auto& plan = *context.training.plan;
  if (!plan.holds_all_states() || plan.mesh.size(layout::Axis::tensor) > 1) {
    log::warn("no checkpoint of the failure: with {} a rank has not all states; the latest is {}",
              plan.strategy, (checkpoints / "last").string());
    return;
  }
  const auto folder = checkpoints / "on_exception" / fmt::format("rank-{}", rank);
  const auto former = checkpoint::linked_checkpoint(folder, "last");
  const auto written = context.actions.save_alone(folder);
  if (!former.empty()) checkpoint::remove_checkpoint(former);
  log::warn("what rank {} had reached is in {}", rank, written.string());
}

}  // namespace troika::train
