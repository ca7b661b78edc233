// Messages between named processes: the interface between users of messages and their transport.
// TcpEndpoint (tcp_endpoint.h) uses sockets. Tests have a simulated network and clock, and a
// decorator that loses, repeats and delays messages and cuts connections (tests/support/net).
//
// Sender and receiver agree on a message's channel. Messages of one (sender, receiver, channel,
// priority) arrive in order, with the exception at handle(), each at most once. When one gets lost,
// the connection is ended and both ends are notified.
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

// Identifies a started operation for cancel(). Never 0.
using Ticket = uint64_t;

// The order in which messages to one peer are sent when several wait.
enum class Priority : uint8_t { urgent, normal, bulk };
inline constexpr size_t kPriorities = 3;

// How an operation ended.
enum class Outcome : uint8_t {
  done,
  timeout,    // passed to cancel() by a caller whose deadline passed
  cancelled,  // passed to cancel() for another reason
  lost,       // the connection to the peer ended, or there was none
  too_long,  // the message exceeds the receiver's buffer or memory; the receiver gets this outcome,
             // and so does the sender of a message of more than 257 KiB
};

struct Result {
  Outcome outcome = Outcome::done;
  size_t bytes = 0;         // size of the message, if done or too_long
  std::string reason = {};  // the reason, if not done
};

// Runs exactly once per operation, under Endpoint's rules for callbacks.
using Completion = std::function<void(const Result&)>;
// Receives messages for which no receive was posted.
using Handler = std::function<void(const std::string& peer, std::string message)>;

// One to four buffers that are sent as one message, in order. Does not own the buffers.
class Pieces {
 public:
  static constexpr size_t kMost = 4;

  template <std::convertible_to<std::string_view> Text>
  Pieces(const Text& only) : Pieces({std::string_view(only)}) {}
  // Throws CheckError for more than kMost buffers.
  Pieces(std::initializer_list<std::string_view> pieces);

  size_t bytes() const { return bytes_; }
  // Calls `take` with the parts of bytes [offset, offset + size), in order.
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

// A peer's connection was established (`is_up`) or ended. `reason` says why it ended, without the
// peer's name.
struct PeerChange {
  std::string peer;
  bool is_up = false;
  std::string reason = {};
};
using PeerListener = std::function<void(const PeerChange&)>;

// Threads and callbacks may call all functions, except where noted. Callbacks (completions,
// handlers, listeners, timers) run one at a time, on any thread that is inside a function of the
// endpoint or on a thread of the endpoint. A callback may run before the function that started its
// operation returns. Callbacks must not block, must not throw, and must not wait for a lock that
// another thread holds while it calls the endpoint.
class Endpoint {
 public:
  explicit Endpoint(std::string name) : name_(std::move(name)) {}
  // Ends all operations that have not ended. Callbacks may run until the destructor returns.
  virtual ~Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The name by which peers know this endpoint.
  const std::string& name() const { return name_; }

  // Sends a message. Never blocks. The buffers of `message` must stay valid until `completion`
  // runs; the completion does not mean that the message has arrived.
  virtual Ticket send(const std::string& peer, Channel channel, const Pieces& message,
                      Priority priority, Completion completion) = 0;
  // Receives the next message of the channel, which may be shorter than `buffer`. Never blocks.
  // Receives of one (peer, channel) are served in the order of posting. `buffer` must stay valid
  // until `completion` runs.
  virtual Ticket receive(const std::string& peer, Channel channel, std::span<char> buffer,
                         Completion completion) = 0;
  // Passes messages of the channel, from any peer, to `handler` unless a receive is posted for
  // them. Drops messages of more than `most` bytes; their sender gets too_long if they have more
  // than 257 KiB. An empty handler removes the current one. The handler gets a message when all of
  // it is here, so a message of at most 257 KiB may overtake an earlier, longer one of the channel.
  virtual void handle(Channel channel, size_t most, Handler handler) = 0;
  // Sets the listener for peers that connect and disconnect; replaces the previous one.
  virtual void listen_to_peers(PeerListener listener) = 0;
  // Ends the connection and all operations with the peer at once, and tells the peer that this
  // endpoint has left. Does nothing without a connection.
  virtual void disconnect(const std::string& peer) = 0;
  // Ends the connection once everything posted for the peer has been sent and the peer has closed
  // its side, but at the latest after `at_most`. Sends posted after this call are lost.
  virtual void part(const std::string& peer, Duration at_most) = 0;
  // Ends an operation or a timer; does nothing if it has ended. The operation completes with
  // outcome `why`; its buffers are free on return. A send that has begun cannot be withdrawn:
  // cancelling it ends the connection.
  virtual void cancel(Ticket ticket, Outcome why) = 0;

  // The endpoint's clock. Its zero is arbitrary.
  virtual Duration now() const = 0;
  // Calls `timer` once, after `delay`.
  virtual Ticket after(Duration delay, std::function<void()> timer) = 0;
  // Blocks until `is_over` returns true or `at_most` has passed; returns the last result of
  // `is_over`. `is_over` runs under the rules for callbacks and is called after each of them.
  // Callbacks must not call this function.
  virtual bool run_until(const std::function<bool()>& is_over, Duration at_most) = 0;

 private:
  const std::string name_;
};

// Calls `act` under the rules for callbacks and returns after it. Protects state that is shared
// with callbacks. Callbacks may call it.
void act_on(Endpoint& endpoint, const std::function<void()>& act);

// Sends a message and keeps it alive until its completion.
Ticket send_owned(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::shared_ptr<const std::string> message, Priority priority = Priority::normal,
                  Completion completion = {});

// Blocking send and receive; receive_by() returns the number of bytes. They throw Error(net):
// `timeout` on the deadline, with the peer's name; `peer` if the connection has ended; `usage` if
// the message is too long for its receiver. After an error the buffer is free. Callbacks must not
// call them.
void send_by(Endpoint& endpoint, const std::string& peer, Channel channel, const Pieces& message,
             Deadline deadline, Priority priority = Priority::normal);
size_t receive_by(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::span<char> buffer, Deadline deadline);

}  // namespace troika::net
