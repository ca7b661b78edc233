// Messages between processes that have names: the seam between those who talk and what carries it.
// TcpEndpoint (tcp_endpoint.h) sends over sockets; tests have a simulated network and clock, and a
// decorator that loses, repeats, delays and cuts (tests/support/net).
//
// A message has a channel, which its sender and receiver agree on. Messages of one (sender,
// receiver, channel, priority) arrive in the order they were sent, once or not at all; after the
// first that does not arrive, the connection is gone and both ends are told.
#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "troika/base/clock.h"

namespace troika::net {

using Channel = uint64_t;
using Duration = std::chrono::nanoseconds;

// Names an operation that was started, for cancel(). Never 0.
using Ticket = uint64_t;

// Decides which message goes first where several wait for one peer.
enum class Priority : uint8_t { urgent, normal, bulk };
inline constexpr size_t kPriorities = 3;

// How an operation ended.
enum class Outcome : uint8_t {
  done,
  timeout,    // given to cancel() by who waited for it
  cancelled,  // the same
  lost,       // the connection to the peer has ended, or there is none
  too_long,   // the message has no room at its receiver, who is told; so is the sender of a message
              // of more than 64 KiB
};

struct Result {
  Outcome outcome = Outcome::done;
  size_t bytes = 0;         // of the message, when done or too_long
  std::string reason = {};  // of any other outcome
};

// Runs once for each operation, under the rules for callbacks of Endpoint.
using Completion = std::function<void(const Result&)>;
// A message that nobody posted a receive for.
using Handler = std::function<void(const std::string& peer, std::string message)>;

// One to four buffers that are sent as one message, one after the other. Does not own them.
class Pieces {
 public:
  static constexpr size_t kMost = 4;

  template <std::convertible_to<std::string_view> Text>
  Pieces(const Text& only) : Pieces({std::string_view(only)}) {}
  // Throws CheckError for more than kMost.
  Pieces(std::initializer_list<std::string_view> pieces);

  size_t bytes() const { return bytes_; }
  // Calls `take` with the parts of [offset, offset + size), in order.
  template <typename Take>
  void slice(size_t offset, size_t size, Take&& take) const {
    for (size_t i = 0; i < count_ && size > 0; ++i) {
      const auto piece = pieces_[i];
      if (offset >= piece.size()) {
        offset -= piece.size();
        continue;
      }
      const auto part = piece.substr(offset, size);
      if (!part.empty()) take(part);
      offset = 0;
      size -= part.size();
    }
  }

 private:
  std::array<std::string_view, kMost> pieces_;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

// A peer's connection came (`is_up`), or went; `reason` says how it went, without the peer's name.
struct PeerChange {
  std::string peer;
  bool is_up = false;
  std::string reason = {};
};
using PeerListener = std::function<void(const PeerChange&)>;

// All functions may be called by any thread, and by callbacks. Callbacks (completions, handlers,
// listeners, timers) run one at a time, on any thread that is inside a function of the endpoint or
// on one of its own: they must not block, nor wait for what another thread holds while it calls the
// endpoint, nor throw. They may run before the function that started the operation has returned.
class Endpoint {
 public:
  explicit Endpoint(std::string name) : name_(std::move(name)) {}
  // Operations that have not ended, end; callbacks may run until then.
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // By which peers know it.
  const std::string& name() const { return name_; }

  // The pieces must stay until the completion: then they may be reused, which does not say that the
  // message has arrived. Never blocks.
  virtual Ticket send(const std::string& peer, Channel channel, const Pieces& message,
                      Priority priority, Completion completion) = 0;
  // Receives the next message of the channel, which may be shorter than the buffer. Receives of one
  // (peer, channel) are served in the order they were posted. The buffer must stay until the
  // completion. Never blocks.
  virtual Ticket receive(const std::string& peer, Channel channel, std::span<char> buffer,
                         Completion completion) = 0;
  // From now on messages of the channel from any peer go to the handler, unless a receive is posted
  // for them. Messages of more than `most` bytes are refused: their sender is told `too_long`. An
  // empty handler ends it.
  virtual void handle(Channel channel, size_t most, Handler handler) = 0;
  // Who is told of peers that come and go; replaces the one before.
  virtual void listen_to_peers(PeerListener listener) = 0;
  // Ends the connection and all operations with the peer at once; the peer is told that this one
  // has left. Nothing where there is no connection.
  virtual void disconnect(const std::string& peer) = 0;
  // Ends the connection when everything that was posted for the peer has been sent and the peer has
  // ended its side, after `at_most` in any case. What is posted from now on is lost.
  virtual void part(const std::string& peer, Duration at_most) = 0;
  // Ends an operation or a timer; nothing when it has ended. A completion runs with the outcome
  // `why`; buffers are free when this returns. A send of which the peer has heard cannot be undone:
  // the connection ends.
  virtual void cancel(Ticket ticket, Outcome why) = 0;

  // The endpoint's clock, whose zero means nothing.
  virtual Duration now() const = 0;
  // Calls `timer` once, when the time has come.
  virtual Ticket after(Duration delay, std::function<void()> timer) = 0;
  // Blocks until `is_over`, which runs under the rules for callbacks and is asked after each of
  // them, or until the time has come; whether it is over. Not for callbacks.
  virtual bool run_until(const std::function<bool()>& is_over, Duration at_most) = 0;

 private:
  const std::string name_;
};

// Calls `act` under the rules for callbacks, before it returns: whoever shares state with callbacks
// uses it so. May be called by callbacks.
void act_on(Endpoint& endpoint, const std::function<void()>& act);

// Sends a message that is kept until it is sent.
Ticket send_owned(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::shared_ptr<const std::string> message, Priority priority = Priority::normal,
                  Completion completion = {});

// Like Endpoint's functions, but blocking: they return the number of bytes, and throw Error(net):
// `timeout` past the deadline, with the peer's name; `peer` for a connection that has ended;
// `usage` for a message that is too long for its receiver. After an error the buffer is free. Not
// for callbacks.
void send_by(Endpoint& endpoint, const std::string& peer, Channel channel, const Pieces& message,
             Deadline deadline, Priority priority = Priority::normal);
size_t receive_by(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::span<char> buffer, Deadline deadline);

}  // namespace troika::net
