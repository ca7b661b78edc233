#include "troika/net/dial.h"

#include <fmt/format.h>

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/net/local_socket.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

using Kind = DialFailure::Kind;

// Returns the first bytes that another program sent, as printable text.
std::string shown(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, 24)) text += c >= ' ' && c <= '~' ? c : '?';
  return text;
}

DialFailure failed(DialFailure::Kind kind, const std::string& detail = {}) {
  return {kind, detail};
}

// Reads exactly one record, because frames may follow it. Returns the failure, or nullopt on
// success.
std::optional<DialFailure> receive_record(int socket, std::string& record, Deadline deadline) {
  size_t wanted = 4;
  while (record.size() < wanted) {
    if (!wait_for(socket, POLLIN, deadline)) return failed(Kind::silent);
    const size_t old = record.size();
    record.resize(wanted);
    const ssize_t got = ::recv(socket, record.data() + old, wanted - old, 0);
    record.resize(old + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return failed(Kind::unreachable, "it ended the connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      return failed(Kind::unreachable, system_reason(errno));
    }
    if (record.size() < 4) continue;
    wanted = 4;
    for (size_t i = 0; i < 4; ++i) {
      wanted += static_cast<size_t>(static_cast<unsigned char>(record[i])) << (8 * i);
    }
    if (wanted > kMaxRecordText + kRecordOverhead) return failed(Kind::foreign, "a broken record");
  }
  return std::nullopt;
}

// Returns the other end's reply, or why there is none.
std::variant<HelloReply, DialFailure> say_hello(int socket, Session& session, const Hello& hello,
                                                Deadline deadline) {
  const std::string sealed = session.sealer.seal(encode(hello));
  std::string_view unsent = sealed;
  std::string record, text, reason;
  // The send buffer of a new socket has room for it.
  if (!send_some(socket, unsent, reason)) return failed(Kind::unreachable, reason);
  if (!unsent.empty()) return failed(Kind::silent);
  if (auto problem = receive_record(socket, record, deadline)) return *problem;
  try {
    session.opener.open(record, text);
  } catch (const Error& broken) {
    return failed(Kind::foreign, broken.what());
  }
  if (auto reply = decode_reply(text)) return *reply;
  return failed(Kind::foreign, "no reply to a hello");
}

}  // namespace

std::string describe(const DialFailure& failure) {
  switch (failure.kind) {
    case Kind::refused:
      return "it ended the connection: another secret, another endpoint's address, or it ends";
    case Kind::wrong:
      return "it does not hold the run's secret";
    case Kind::foreign:
      return fmt::format("another program answered: \"{}\"", failure.detail);
    case Kind::silent:
      return "no answer in time";
    default:
      return failure.detail;
  }
}

std::variant<SessionKeys, DialFailure> greet(int socket, const Secret& secret,
                                             const std::string& listener, Deadline deadline) {
  const ClientHandshake handshake(secret, listener);
  std::string_view unsent = handshake.first_message();
  std::string answer, reason;
  while (true) {
    // Even if sending fails, the server may have sent an answer before it closed the connection.
    std::string unsent_reason;
    const bool sends = send_some(socket, unsent, unsent_reason);
    const short events = static_cast<short>(sends && !unsent.empty() ? POLLIN | POLLOUT : POLLIN);
    if (!wait_for(socket, events, deadline)) return failed(Kind::silent);
    const bool open = receive(socket, answer, reason);
    if (!may_begin(answer, kServerMagic)) return failed(Kind::foreign, shown(answer));
    if (answer.size() >= kHandshakeSize) {
      // The server sends nothing more until it gets our hello, so the answer has exactly this size.
      if (auto keys = handshake.finish(answer)) return *keys;
      return failed(Kind::wrong);
    }
    if (!open) return failed(Kind::refused, reason);
  }
}

namespace {

// Proves both ends to each other over a new connection.
DialResult introduce(Descriptor connection, const std::string& peer, const Secret& secret,
                     const Hello& hello, Deadline deadline) {
  const int socket = connection.get();
  tune(socket);
  const auto greeting = greet(socket, secret, listener_name(peer), deadline);
  if (const auto* failure = std::get_if<DialFailure>(&greeting)) return *failure;
  const auto& keys = std::get<SessionKeys>(greeting);
  Session session(keys);
  const auto answer = say_hello(socket, session, hello, deadline);
  if (const auto* failure = std::get_if<DialFailure>(&answer)) return *failure;
  const auto& reply = std::get<HelloReply>(answer);
  switch (reply.verdict) {
    case Verdict::welcome:
      return Dialed{std::move(connection), frame_keys(keys)};
    case Verdict::busy:
      return failed(Kind::busy, "another connection under this name");
    case Verdict::refused:
      break;
  }
  throw Error("net", ErrorKind::usage,
              {.what = fmt::format("{} refused to be connected", peer), .got = reply.reason});
}

// Whether the process behind the Unix socket of a port may be another one than behind the port.
bool may_be_another(const DialFailure& failure) {
  return failure.kind != Kind::busy && failure.kind != Kind::silent;
}

}  // namespace

DialResult dial(const std::string& peer, const Address& address, const Secret& secret,
                const Hello& hello, const DialPatience& patience) {
  const auto by = [&](Milliseconds time) {
    return std::min(patience.deadline, Deadline::after(time));
  };
  if (auto local = connect_locally(address.host, address.port)) {
    auto result = introduce(std::move(local), peer, secret, hello, by(patience.answer));
    const auto* failure = std::get_if<DialFailure>(&result);
    if (!failure || !may_be_another(*failure)) return result;
  }
  auto attempt = try_connect(address.host, address.port, by(patience.connect));
  if (!attempt.socket) return failed(Kind::unreachable, attempt.problem);
  return introduce(std::move(attempt.socket), peer, secret, hello, by(patience.answer));
}

}  // namespace troika::net
