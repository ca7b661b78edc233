#include "troika/parallel/pipeline/pipeline_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/layout/schedules/complete.h"

namespace troika::parallel {

using layout::Axis;

PipelinePlace::PipelinePlace(layout::Mesh mesh, int rank, const layout::Schedule& schedule)
    : mesh_(std::move(mesh)), own_(mesh_.coordinates(rank)) {
  const auto ranks = static_cast<int>(schedule.ranks.size());
  if (ranks != mesh_.size(Axis::pipeline)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a schedule for another number of pipeline ranks",
                 .got = std::to_string(ranks),
                 .expected = fmt::format("{}: mesh {}", mesh_.size(Axis::pipeline), mesh_.text())});
  }
  for (int r = 0; r < ranks; ++r) {
    for (const auto& action : schedule.ranks[static_cast<size_t>(r)]) {
      const auto stage = static_cast<size_t>(action.stage);
      if (stage >= pipeline_ranks_.size()) pipeline_ranks_.resize(stage + 1, 0);
      pipeline_ranks_[stage] = r;
    }
  }
}

std::vector<int> PipelinePlace::own_stages() const {
  std::vector<int> result;
  for (int s = 0; s < stages(); ++s) {
    if (is_mine(s)) result.push_back(s);
  }
  return result;
}

int PipelinePlace::rank(int stage, int micro_batch) const {
  auto at = own_;
  at[Axis::pipeline] = pipeline_rank(stage);
  if (shares_micro_batches()) at[Axis::data] = micro_batch % mesh_.replicas(pipeline_rank(stage));
  return mesh_.rank(at);
}

std::vector<int> PipelinePlace::replicas(int stage) const {
  auto at = own_;
  at[Axis::pipeline] = pipeline_rank(stage);
  std::vector<int> result;
  for (int d = 0; d < mesh_.replicas(at[Axis::pipeline]); ++d) {
    at[Axis::data] = d;
    for (int c = 0; c < mesh_.size(Axis::context); ++c) {
      at[Axis::context] = c;
      result.push_back(mesh_.rank(at));
    }
  }
  return result;
}

std::vector<layout::Action> PipelinePlace::actions(const layout::Schedule& schedule) const {
  const int own = own_[Axis::pipeline];
  const auto& all = schedule.ranks[static_cast<size_t>(own)];
  if (!shares_micro_batches()) return all;
  return layout::actions_of_replica(all, replica(), mesh_.replicas(own));
}

}  // namespace troika::parallel
