// Messages that one peer sends, and the receives and handlers that take them. It has no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "troika/net/endpoint.h"
#include "troika/net/frame.h"

namespace troika::net {

struct Posted {
  Ticket ticket = 0;
  std::span<char> buffer = {};
  Completion completion = {};
};

// The handlers of an endpoint.
struct HandlerEntry {
  size_t most = 0;
  Handler handler;
};
using Handlers = std::unordered_map<Channel, HandlerEntry>;

// Callbacks may call back into it. For a single thread.
class Mailbox {
 public:
  // `reply` sends a control frame to the peer. `handlers` must outlive the mailbox.
  Mailbox(std::string peer, const Handlers& handlers, std::function<void(const FrameHead&)> reply);

  // A receive; `is_connected`: whether more can come.
  void post(Channel channel, Posted posted, bool is_connected);
  // Ends a receive with the outcome; gives the buffer that nothing may be written to any more, or
  // nothing where it does not know the ticket.
  std::optional<std::span<char>> cancel(Ticket ticket, Outcome why);
  // Whether no message is here that nobody has taken.
  bool is_empty() const { return arrived_.empty(); }
  bool has_message(Channel channel) const { return arrived_.contains(channel); }
  // Serves what has arrived for a channel that has a handler now.
  void serve(Channel channel);
  // The connection has ended: completes all receives. Messages that are here can still be received.
  void fail(const std::string& reason);

  // Frames of the peer, which throw Error(net, failure) for what no peer sends. begin() says where
  // a payload of head.length bytes belongs; null: nowhere. end() follows when it is there. At most
  // one frame of kind `message` is between the two.
  char* begin(const FrameHead& head);
  void end(const FrameHead& head);
  void announce(const FrameHead& head);

 private:
  // A message or an announcement that nobody takes yet.
  struct Arrived {
    FrameHead head;
    std::string text = {};
    size_t cost = 0;
  };
  // An announced message that was granted.
  struct Incoming {
    Posted posted = {};
    std::string text = {};         // for a handler
    size_t size = 0, missing = 0;  // bytes
    bool is_posted = false;
  };

  char* begin_message(const FrameHead& head);
  char* begin_data(const FrameHead& head);
  void end_message(const FrameHead& head);
  void end_data(const FrameHead& head);
  // Gives it to the receive or the handler that wants it; false where there is none.
  bool deliver(Arrived& arrived);
  void fill(Posted posted, const Arrived& arrived);
  // Grants the message, or refuses it where the receive has no room.
  void accept(Posted posted, const FrameHead& head);
  std::optional<Posted> take_posted(Channel channel);
  const HandlerEntry* handler_of(Channel channel) const;
  void charge(size_t cost);
  void consumed(size_t cost);
  void keep(Arrived arrived);

  const std::string peer_;
  const Handlers& handlers_;
  const std::function<void(const FrameHead&)> reply_;
  std::unordered_map<Channel, std::deque<Posted>> posted_;
  std::unordered_map<Channel, std::deque<Arrived>> arrived_;
  std::unordered_map<uint64_t, Incoming> incoming_;  // by id
  std::optional<Posted> direct_;                     // which the payload of a message is read into
  std::string text_;                                 // or this
  bool is_dropped_ = false;                          // or nothing
  bool fills_text_ = false;     // an announced message for a handler is on its way: one at a time
  size_t held_ = 0;             // credit that is not consumed
  size_t owed_ = 0;             // credit that was consumed and not given back
  bool has_told_hold_ = false;  // since credit was last given back
};

}  // namespace troika::net
