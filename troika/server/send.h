// Sends messages that consist of a head and a body. Several messages may share a body. Internal to
// the room.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "troika/net/endpoint.h"

namespace troika::server {

using Message = std::shared_ptr<const std::string>;

// Sends a message. Keeps its parts alive until they are sent. `completion` may be empty.
inline void send_pieces(net::Endpoint& endpoint, const std::string& peer, net::Channel channel,
                        std::string head, const Message& body, const Message& rest,
                        net::Completion completion) {
  const auto kept = std::make_shared<const std::string>(std::move(head));
  endpoint.send(peer, channel,
                {std::string_view(*kept), std::string_view(*body), std::string_view(*rest)},
                net::Priority::normal,
                [kept, body, rest, completion = std::move(completion)](const net::Result& result) {
                  if (completion) completion(result);
                });
}

// Returns the time until the deadline; 0 after it.
inline net::Duration time_left(Deadline deadline) {
  return std::max(net::Duration(0), net::Duration(deadline.at() - Clock::now()));
}

}  // namespace troika::server
