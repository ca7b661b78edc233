// The streams of messages between stages, for those who open connections before a schedule runs.
#pragma once

#include <vector>

#include "troika/layout/schedule.h"

namespace troika::layout {

// All messages of one kind from a stage to a stage on another rank, in the order of its sends,
// which is that of its receives.
struct MessageEdge {
  ActionKind kind = ActionKind::send_activation;  // or send_gradient
  int from = 0;                                   // stages
  int to = 0;
  // The most messages that are received by the schedule's order and wait for the pass that takes
  // them. A receiver that takes each message only when that pass begins stands still in no schedule
  // that verify() takes, if the sender may have so many messages on their way without waiting: the
  // depth of a comm::SendingEdge.
  int depth = 0;

  bool operator==(const MessageEdge&) const = default;
};

// Of a schedule that verify() takes; ascending by sender, receiver and kind.
std::vector<MessageEdge> message_edges(const Schedule& schedule);

}  // namespace troika::layout
