#include "troika/net/endpoint.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "troika/base/error.h"

namespace troika::net {

namespace {

Duration left(Deadline deadline) {
  return std::max(Duration(0), deadline.at() - Clock::now());
}

// Starts an operation with `start(completion)` and blocks until it has completed.
template <typename Start>
size_t complete(Endpoint& endpoint, const std::string& what, const Start& start,
                Deadline deadline) {
  std::optional<Result> result;
  const Ticket ticket = start([&result](const Result& given) { result = given; });
  if (!endpoint.run_until([&result] { return result.has_value(); }, left(deadline))) {
    // The operation may have completed meanwhile. In either case the completion has run.
    endpoint.cancel(ticket, Outcome::timeout);
  }
  switch (result->outcome) {
    case Outcome::done:
      return result->bytes;
    case Outcome::timeout:
      throw Error("net", ErrorKind::timeout, {.what = what + " did not finish in time"});
    case Outcome::too_long:
      throw Error("net", ErrorKind::usage,
                  {.what = what + " has no room",
                   .got = fmt::format("{} bytes", result->bytes),
                   .expected = "at most what the receiver accepts and has memory for"});
    case Outcome::cancelled:
    case Outcome::lost:
      break;
  }
  throw Error("net", ErrorKind::peer, {.what = what + " failed", .got = result->reason});
}

}  // namespace

Pieces::Pieces(std::initializer_list<std::string_view> pieces) : count_(pieces.size()) {
  TROIKA_CHECK(count_ <= kMost, "a message has at most 4 buffers");
  std::ranges::copy(pieces, pieces_.begin());
  for (const auto piece : pieces) bytes_ += piece.size();
}

void act_on(Endpoint& endpoint, const std::function<void()>& act) {
  endpoint.run_until(
      [&] {
        act();
        return true;
      },
      Duration(0));
}

Ticket send_owned(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::shared_ptr<const std::string> message, Priority priority,
                  Completion completion) {
  const std::string_view text = *message;
  return endpoint.send(
      peer, channel, text, priority,
      [message = std::move(message), completion = std::move(completion)](const Result& result) {
        if (completion) completion(result);
      });
}

void send_by(Endpoint& endpoint, const std::string& peer, Channel channel, const Pieces& message,
             Deadline deadline, Priority priority) {
  complete(
      endpoint, fmt::format("a message to {}", peer),
      [&](Completion completion) {
        return endpoint.send(peer, channel, message, priority, std::move(completion));
      },
      deadline);
}

size_t receive_by(Endpoint& endpoint, const std::string& peer, Channel channel,
                  std::span<char> buffer, Deadline deadline) {
  return complete(
      endpoint, fmt::format("a message from {}", peer),
      [&](Completion completion) {
        return endpoint.receive(peer, channel, buffer, std::move(completion));
      },
      deadline);
}

}  // namespace troika::net
