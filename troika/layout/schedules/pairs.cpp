#include "troika/layout/schedules/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

PipelineShape of_pairs(PipelineShape shape) {
  shape.micro_batches = (shape.micro_batches + 1) / 2;
  return shape;
}

// Whether a stage's backward passes begin with the last micro-batch, as those of gpipe do.
bool is_reversed(const Schedule& order) {
  const auto& actions = order.ranks.front();
  const auto backward = std::ranges::find_if(
      actions, [](const Action& action) { return action.kind != ActionKind::forward; });
  return backward->micro_batch > 0;
}

}  // namespace

void require_pairs(const ScheduleRow& row, const PipelineShape& shape) {
  const auto pairs = of_pairs(shape);
  if (!row.takes || row.takes(pairs)) return;
  refuse(fmt::format("schedule {} on {} ranks with mesh.tensor_overlap", row.name, shape.ranks),
         fmt::format("{} micro-batches", shape.micro_batches),
         fmt::format("a number of pairs that is {}", row.domain));
}

Schedule order_in_pairs(const ScheduleRow& row, const PipelineShape& shape) {
  require_pairs(row, shape);
  const bool reverses = is_reversed(row.order(shape));
  auto order = row.order(of_pairs(shape));
  for (auto& actions : order.ranks) {
    for (const auto pairs = std::exchange(actions, {}); auto pass : pairs) {
      pass.joined = false;
      std::pair both(2 * pass.micro_batch, 2 * pass.micro_batch + 1);
      if (reverses && pass.kind != ActionKind::forward) std::swap(both.first, both.second);
      for (const int micro_batch : {both.first, both.second}) {
        if (micro_batch >= shape.micro_batches) continue;
        pass.micro_batch = micro_batch;
        actions.push_back(pass);
      }
    }
  }
  return order;
}

Schedule join_pairs(Schedule passes) {
  for (auto& actions : passes.ranks) {
    for (size_t i = 0; i + 1 < actions.size(); ++i) {
      auto& first = actions[i];
      const auto& second = actions[i + 1];
      if (first.kind != ActionKind::forward || second.kind != ActionKind::forward) continue;
      if (first.joined || second.joined || first.stage != second.stage) continue;
      first.joined = first.micro_batch % 2 == 0 && second.micro_batch == first.micro_batch + 1;
    }
  }
  return passes;
}

bool begins_pair(const std::vector<Action>& actions, size_t index) {
  return actions[index].joined && actions[index].kind == ActionKind::forward &&
         actions.at(index + 1).kind == ActionKind::forward;
}

}  // namespace troika::layout
