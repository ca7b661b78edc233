// The frames that wait to be sent to one peer, ordered by priority and limited by credit. Does not
// use sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "troika/net/endpoint.h"
#include "troika/net/frame.h"

namespace troika::net {

// An outgoing message.
struct Outgoing {
  Ticket ticket = 0;
  Channel channel = 0;
  Pieces message;
  Priority priority{};
  Completion completion = {};
  size_t framed = 0;       // bytes in frames that next() has returned
  size_t written = 0;      // bytes of these that the socket has accepted
  uint64_t id = 0;         // set when granted
  bool has_begun = false;  // the peer knows of it, or will soon
};

// A frame and the location of its payload: bytes [head.size, head.size + head.length) of the
// message for a data frame, the whole message for other frames.
struct OutFrame {
  FrameHead head;
  std::shared_ptr<Outgoing> message = {};  // set for a message, an announcement or data

  size_t offset() const { return head.kind == FrameKind::data ? head.size : 0; }
};

// The frames that a socket of the connection may carry.
enum class Carries : uint8_t { all, data, all_but_data };

// Callbacks may call its functions. Not thread-safe.
class SendQueue {
 public:
  void add(std::shared_ptr<Outgoing> message);
  // Adds a frame that belongs to no message. It is sent before all others.
  void add_control(const FrameHead& head) { control_.push_back(head); }

  // Returns the next frame for a socket of this kind.
  std::optional<OutFrame> next(Carries carries);
  // The socket has accepted a frame that next() returned.
  void wrote(const OutFrame& frame);
  bool is_empty() const { return control_.empty() && live_.empty(); }

  // Control frames from the peer. Invalid ones throw Error(net, failure).
  void grant(uint64_t id);
  void refuse(uint64_t id);
  void give_credit(uint64_t amount);
  void hold() { announces_all_ = true; }

  // Completes the message with the outcome. `must_end`: the peer knows of the message and would
  // wait for the rest, and frames may still refer to it, so the connection must end.
  enum class Cancelled : uint8_t { unknown, done, must_end };
  Cancelled cancel(Ticket ticket, Outcome why);
  // Completes all messages as lost and resets the state for a new connection.
  void fail(const std::string& reason);

 private:
  using Queue = std::deque<std::shared_ptr<Outgoing>>;

  std::optional<OutFrame> next_message(size_t priority);
  OutFrame next_data(Queue& queue);
  std::shared_ptr<Outgoing> take_announced(uint64_t id);
  void complete(const std::shared_ptr<Outgoing>& message, const Result& result);

  std::deque<FrameHead> control_;
  std::array<Queue, kPriorities> fresh_;    // neither sent nor announced
  std::array<Queue, kPriorities> granted_;  // granted; their data may be sent
  std::unordered_map<uint64_t, std::shared_ptr<Outgoing>> announced_;  // by id
  std::unordered_map<Ticket, std::shared_ptr<Outgoing>> live_;         // all that are not complete
  uint64_t credit_ = kCreditWindow;
  bool announces_all_ = false;
  uint64_t next_id_ = 1;
};

}  // namespace troika::net
