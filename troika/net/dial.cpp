#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <variant>

#include "troika/base/error.h"
#include "troika/net/client.h"
#include "troika/net/hello.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

constexpr Milliseconds kFirstRest{10};
constexpr Milliseconds kLongestRest{200};
// An address that does not answer leaves time for the others.
constexpr Milliseconds kMostForOne{5000};

std::string show(const Address& address) {
  return address.host.find(':') == std::string::npos
             ? fmt::format("{}:{}", address.host, address.port)
             : fmt::format("[{}]:{}", address.host, address.port);
}

// Reads exactly one record, because frames may follow it; why not, or "".
std::string receive_record(int socket, std::string& record, Deadline deadline) {
  size_t wanted = 4;
  while (record.size() < wanted) {
    if (!wait_for(socket, POLLIN, deadline)) return "no answer in time";
    const size_t old = record.size();
    record.resize(wanted);
    const ssize_t got = ::recv(socket, record.data() + old, wanted - old, 0);
    record.resize(old + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return "it ended the connection";
    if (got < 0 && errno != EAGAIN && errno != EINTR) return system_reason(errno);
    if (record.size() < 4) continue;
    wanted = 4;
    for (size_t i = 0; i < 4; ++i) {
      wanted += static_cast<size_t>(static_cast<unsigned char>(record[i])) << (8 * i);
    }
    if (wanted > kMaxRecordText + kRecordOverhead) return "an answer that no endpoint sends";
  }
  return {};
}

// The reply of the other end, or why there is none.
std::variant<HelloReply, std::string> say_hello(int socket, Session& session, const Hello& hello,
                                                Deadline deadline) {
  const std::string sealed = session.sealer.seal(encode(hello));
  std::string_view unsent = sealed;
  std::string record, text, reason;
  // A new socket has room for it.
  if (!send_some(socket, unsent, reason)) return reason;
  if (!unsent.empty()) return "it takes nothing";
  if (auto problem = receive_record(socket, record, deadline); !problem.empty()) return problem;
  try {
    session.opener.open(record, text);
  } catch (const Error& broken) {
    return broken.what();
  }
  if (auto reply = decode_reply(text)) return *reply;
  return "an answer that no endpoint sends";
}

std::string describe(const Greeting& greeting) {
  switch (greeting.proof) {
    case Proof::refused:
      return "it ended the connection: another secret, another endpoint's address, or it ends";
    case Proof::wrong:
      return "it does not hold the run's secret";
    case Proof::foreign:
      return fmt::format("another program answered: \"{}\"", greeting.detail);
    default:
      return "no answer in time";
  }
}

std::variant<Dialed, std::string> try_address(const std::string& peer, const Address& address,
                                              const Secret& secret, const Hello& hello,
                                              Deadline deadline) {
  auto attempt = try_connect(address.host, address.port, deadline);
  if (!attempt.socket) return attempt.problem;
  tune(attempt.socket.get());
  const auto greeting = greet(attempt.socket.get(), secret, listener_name(peer), deadline);
  if (greeting.proof != Proof::given) return describe(greeting);
  Session session(*greeting.keys);
  auto answer = say_hello(attempt.socket.get(), session, hello, deadline);
  if (auto* why = std::get_if<std::string>(&answer)) return std::move(*why);
  const auto& reply = std::get<HelloReply>(answer);
  if (reply.verdict == Verdict::refused) {
    throw Error("net", ErrorKind::usage,
                {.what = fmt::format("{} refused to be connected", peer), .got = reply.reason});
  }
  return Dialed{std::move(attempt.socket), frame_keys(*greeting.keys), reply.verdict, address};
}

}  // namespace

Dialed dial(const std::string& peer, const std::vector<Address>& addresses, const Secret& secret,
            const Hello& hello, Deadline deadline) {
  TROIKA_CHECK(!addresses.empty(), "a peer is connected to at an address");
  std::vector<std::string> problems(addresses.size());
  for (Milliseconds rest = kFirstRest;; rest = std::min(2 * rest, kLongestRest)) {
    for (size_t i = 0; i < addresses.size(); ++i) {
      const auto share = deadline.left() / static_cast<int>(addresses.size() - i);
      auto result = try_address(peer, addresses[i], secret, hello,
                                Deadline::after(std::min(share, kMostForOne)));
      if (auto* dialed = std::get_if<Dialed>(&result)) return std::move(*dialed);
      // An attempt that our own deadline ended tells less than the one before.
      if (deadline.passed() && !problems[i].empty()) continue;
      problems[i] = fmt::format("{}: {}", show(addresses[i]), std::get<std::string>(result));
    }
    if (deadline.left() <= rest) {
      throw Error("net", ErrorKind::timeout,
                  {.what = fmt::format("could not connect to {} in time", peer),
                   .got = fmt::format("{}", fmt::join(problems, "; "))});
    }
    // For a listener that is not there yet.
    std::this_thread::sleep_for(rest);
  }
}

}  // namespace troika::net
