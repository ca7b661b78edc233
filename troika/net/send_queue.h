// The frames that wait to be sent to one peer, in order of priority and credit. It has no sockets.
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

// A message on its way out.
struct Outgoing {
  Ticket ticket = 0;
  Channel channel = 0;
  Pieces message;
  Priority priority{};
  Completion completion;
  size_t framed = 0;       // bytes in frames that next() has given out
  size_t written = 0;      // of these, bytes that are in the socket
  uint64_t id = 0;         // once granted
  bool has_begun = false;  // the peer has heard of it, or is about to
};

// A frame and where its payload lies: [head.size, head.size + head.length) of a data frame's
// message, all of another's.
struct OutFrame {
  FrameHead head;
  std::shared_ptr<Outgoing> message = {};  // of a message, an announcement or data

  size_t offset() const { return head.kind == FrameKind::data ? head.size : 0; }
};

// The frames that a socket of the pair may carry.
enum class Carries : uint8_t { all, data, all_but_data };

// Callbacks may call back into it. For a single thread.
class SendQueue {
 public:
  void add(std::shared_ptr<Outgoing> message);
  // A frame that is no message's; goes before all others.
  void add_control(const FrameHead& head) { control_.push_back(head); }

  // The frame that goes next over such a socket.
  std::optional<OutFrame> next(Carries carries);
  // A frame that next() has given is in the socket.
  void wrote(const OutFrame& frame);
  bool is_empty() const { return control_.empty() && live_.empty(); }

  // From the peer. Throw Error(net, failure) for what no peer sends.
  void grant(uint64_t id);
  void refuse(uint64_t id);
  void give_credit(uint64_t amount);
  void hold() { announces_all_ = true; }

  // Completes it with the outcome; `must_end`: the peer has heard of it and would wait for the
  // rest, which still lies in frames.
  enum class Cancelled : uint8_t { unknown, done, must_end };
  Cancelled cancel(Ticket ticket, Outcome why);
  // Completes all; as after this a new connection would begin.
  void fail(const std::string& reason);

 private:
  using Queue = std::deque<std::shared_ptr<Outgoing>>;

  std::optional<OutFrame> next_message(size_t priority);
  OutFrame next_data(Queue& queue);
  std::shared_ptr<Outgoing> take_announced(uint64_t id);
  void complete(const std::shared_ptr<Outgoing>& message, const Result& result);

  std::deque<FrameHead> control_;
  std::array<Queue, kPriorities> fresh_;                               // neither sent nor announced
  std::array<Queue, kPriorities> granted_;                             // of which data may be sent
  std::unordered_map<uint64_t, std::shared_ptr<Outgoing>> announced_;  // by id
  std::unordered_map<Ticket, std::shared_ptr<Outgoing>> live_;         // all that are not complete
  uint64_t credit_ = kCreditWindow;
  bool announces_all_ = false;
  uint64_t next_id_ = 1;
};

}  // namespace troika::net
