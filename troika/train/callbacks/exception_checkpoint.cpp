#include "troika/train/callbacks/exception_checkpoint.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/fit_context.h"
#include "troika/train/strategy.h"

namespace troika::train {

namespace {

bool failed_by_itself(const std::exception& problem) {
  const auto* error = dynamic_cast<const Error*>(&problem);
  return !error || (error->kind() != ErrorKind::peer && error->kind() != ErrorKind::timeout);
}

bool holds_all_states(const std::string& strategy) {
  return strategy.starts_with("ddp") || strategy == "horovod" || strategy == "dp";
}

}  // namespace

void ExceptionCheckpoint::on_exception(FitContext& context, const std::exception& problem) {
  const int rank = context.group.rank();
  if (rank != 0 && !failed_by_itself(problem)) return;
  const auto checkpoints = context.folder / "checkpoints";
  const auto strategy = canonical_strategy(context.options.trainer.strategy);
  if (!holds_all_states(strategy)) {
    log::warn("no checkpoint of the failure: with {} a rank has not all states; the latest is {}",
              strategy, (checkpoints / "last").string());
    return;
  }
  const auto folder = checkpoints / "on_exception" / fmt::format("rank-{}", rank);
  const auto former = linked_checkpoint(folder, "last");
  const auto written = context.save_alone(folder);
  if (!former.empty()) remove_checkpoint(former);
  log::warn("what rank {} had reached is in {}", rank, written.string());
}

}  // namespace troika::train
