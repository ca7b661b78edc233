// Points on the wire at which a process of a test ends itself as a kill would end it.
#pragma once

#include <functional>
#include <string>

#include "troika/net/endpoint.h"

namespace troika::train {

enum class Passage : uint8_t { sent, received };

// A message that passes between processes, without protection, and is no longer than
// net::kEagerBytes.
struct WirePoint {
  Passage passage = Passage::sent;
  // Whether it is a message of the kind. Small messages that travel together come one by one.
  std::function<bool(net::Channel channel, const std::string& message)> is_it;
  int number = 1;  // of the message among those of the kind, from 1
};

// Makes this process end by SIGKILL when the message has left it, or has arrived and nobody has
// read it. Call it once, before the process has connections.
void die_at(WirePoint point);

}  // namespace troika::train
