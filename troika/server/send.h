// Sends messages that consist of a head and a body. Several messages may share a body. Internal to
// the room.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "troika/net/endpoint.h"

namespace troika::server {

using Message = std::shared_ptr<const std::string>;

// Bytes that stay valid and unchanged while `owner` exists.
struct SharedBytes {
  std::string_view bytes = {};
  std::shared_ptr<const void> owner = {};

  SharedBytes() = default;
  SharedBytes(std::string_view bytes_, std::shared_ptr<const void> owner_)
      : bytes(bytes_), owner(std::move(owner_)) {}
  SharedBytes(const Message& message) : SharedBytes(*message, message) {}
};

// Sends a message. Keeps its parts alive until they are sent. `completion` may be empty.
inline void send_pieces(net::Endpoint& endpoint, const std::string& peer, net::Channel channel,
                        std::string head, const std::array<SharedBytes, 3>& rest,
                        net::Completion completion) {
  const auto kept = std::make_shared<const std::string>(std::move(head));
  endpoint.send(peer, channel, {*kept, rest[0].bytes, rest[1].bytes, rest[2].bytes},
                net::Priority::normal,
                [kept, rest, completion = std::move(completion)](const net::Result& result) {
                  if (completion) completion(result);
                });
}

// Returns the time until the deadline; 0 after it.
inline net::Duration time_left(Deadline deadline) {
  return std::max(net::Duration(0), net::Duration(deadline.at() - Clock::now()));
}

}  // namespace troika::server
