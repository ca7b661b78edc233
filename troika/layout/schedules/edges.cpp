#include "troika/layout/schedules/edges.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace troika::layout {

namespace {

// Sending stage, receiving stage and kind of the send.
using EdgeKey = std::tuple<int, int, ActionKind>;

// Returns the kind of message that a pass takes from other ranks.
ActionKind taken_by(ActionKind pass) {
  return pass == ActionKind::forward ? ActionKind::receive_activation
                                     : ActionKind::receive_gradient;
}

}  // namespace

std::vector<MessageEdge> message_edges(const Schedule& schedule) {
  struct Waiting {
    int now = 0;
    int most = 0;
  };
  std::map<EdgeKey, Waiting> edges;
  for (const auto& actions : schedule.ranks) {
    // The edges whose received messages wait for a pass: stage, kind of message, micro-batch.
    std::map<std::tuple<int, ActionKind, int>, std::vector<EdgeKey>> arrived;
    for (const auto& action : actions) {
      if (action.kind == ActionKind::receive_activation ||
          action.kind == ActionKind::receive_gradient) {
        const auto send = partner_of(action);
        const EdgeKey key{send.stage, action.stage, send.kind};
        auto& edge = edges[key];
        edge.most = std::max(edge.most, ++edge.now);
        arrived[{action.stage, action.kind, action.micro_batch}].push_back(key);
      }
      if (!is_pass(action.kind) || action.kind == ActionKind::backward_weight) continue;
      const auto taken = arrived.find({action.stage, taken_by(action.kind), action.micro_batch});
      if (taken == arrived.end()) continue;
      for (const auto& key : taken->second) --edges[key].now;
      arrived.erase(taken);
    }
  }
  std::vector<MessageEdge> all;
  for (const auto& [key, waiting] : edges) {
    all.push_back({std::get<ActionKind>(key), std::get<0>(key), std::get<1>(key), waiting.most});
  }
  return all;
}

}  // namespace troika::layout
