// The streams of messages between stages, for opening connections before a schedule runs.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

// All messages of one kind from one stage to a stage on another rank, in the order of their sends,
// which equals the order of their receives.
struct MessageEdge {
  ActionKind kind = ActionKind::send_activation;  // or send_gradient
  int from = 0;                                   // stages
  int to = 0;
  // The maximum number of messages that are received, by the schedule, before the pass that
  // consumes them begins. If the edge allows this many messages in flight (the depth of a
  // comm::SendingEdge), a receiver may take each message only when its consuming pass begins, and
  // no schedule accepted by verify() deadlocks.
  int depth = 0;

  bool operator==(const MessageEdge&) const = default;
};

// Returns the edges of a schedule accepted by verify(), ascending by sender, receiver and kind.
std::vector<MessageEdge> message_edges(const Schedule& schedule);

}  // namespace troika::layout
