// Matches messages from one peer with receives and handlers. Does not use sockets.
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
#include "troika/net/frame_reader.h"

namespace troika::net {

struct Posted {
  Ticket ticket = 0;
  std::span<char> buffer = {};
  Completion completion = {};
};

// An endpoint's handler for one channel; accepts messages of at most `most` bytes.
struct HandlerEntry {
  size_t most = 0;
  Handler handler;
};
using Handlers = std::unordered_map<Channel, HandlerEntry>;

// Callbacks may call its functions. Not thread-safe.
class Mailbox {
 public:
  // `reply` sends a control frame to the peer. `handlers` must outlive the mailbox.
  Mailbox(std::string peer, const Handlers& handlers, std::function<void(const FrameHead&)> reply);

  // Posts a receive. `is_connected`: whether more messages can arrive.
  void post(Channel channel, Posted posted, bool is_connected);
  // Ends a receive with the outcome. Returns its buffer, which must not be written to any more, or
  // nullopt if the ticket is unknown.
  std::optional<std::span<char>> cancel(Ticket ticket, Outcome why);
  // Whether no unconsumed message is stored.
  bool is_empty() const { return arrived_.empty(); }
  bool has_message(Channel channel) const { return arrived_.contains(channel); }
  // Passes the stored messages of a channel to its new handler.
  void serve(Channel channel);
  // The connection has ended: completes all receives. Messages that have arrived completely can
  // still be received.
  void fail(const std::string& reason);

  // Frames from the peer. Invalid frames throw Error(net, failure). begin() returns the destination
  // for a payload of head.length bytes, or null to drop it. end() follows when the payload is
  // complete. At most one frame of kind `message` may be between the two at a time.
  char* begin(const FrameHead& head);
  void end(const FrameHead& head);
  // Returns a frame that gives back the credit of consumed messages, if there is enough to send it
  // along with other frames; without these, credit is given back later, in larger amounts.
  std::optional<FrameHead> take_credit();
  // Returns where a message with the channel and the length of the last long one would go, if a
  // receive is posted there; otherwise an empty span.
  FrameSink::Expected expected() const;
  void announce(const FrameHead& head);

 private:
  // A message or an announcement that is not consumed yet.
  struct Arrived {
    FrameHead head;
    std::string text = {};
    size_t cost = 0;
  };
  // An announced message that was granted.
  struct Incoming {
    Posted posted = {};
    Channel channel = 0;           // if a handler takes it
    std::string text = {};         // destination if a handler takes it; grows with the data
    size_t size = 0, missing = 0;  // in bytes
    bool is_posted = false;
  };

  // The granted messages for handlers, in their order, and their size.
  struct Filled {
    std::deque<uint64_t> ids;
    size_t bytes = 0;
  };

  char* begin_message(const FrameHead& head);
  char* begin_data(const FrameHead& head);
  void end_message(const FrameHead& head);
  void end_data(const FrameHead& head);
  // Passes it to a posted receive or a handler. Returns false if there is none that can take it.
  bool deliver(Arrived& arrived);
  void fill(Posted posted, const Arrived& arrived);
  // Grants the message, or refuses it if the receive's buffer is too small.
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
  Channel long_channel_ = 0;                         // of the last long message, and its length
  size_t long_length_ = 0;
  std::optional<Posted> direct_;  // the receive that takes the current `message` frame, if any
  std::string text_;              // otherwise its text,
  bool is_dropped_ = false;       // unless the payload is dropped
  Filled filled_;
  size_t held_ = 0;             // credit that is not yet consumed
  size_t owed_ = 0;             // credit that is consumed but not yet returned
  bool has_told_hold_ = false;  // since credit was last returned
};

}  // namespace troika::net
