#include "troika/cluster/connect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/listen.h"
#include "troika/cluster/roster.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// The server ends the gathering at the first deadline of any rank and tells all of them why; this
// much longer its word may take to arrive.
constexpr Milliseconds kVerdictTime{2000};
// A connection attempt to a machine that is not up yet must not eat the whole time.
constexpr Milliseconds kAttemptTime{5000};
// Rank 0 answers as soon as it has read.
constexpr Milliseconds kGreetingTime{5000};
constexpr Milliseconds kFirstPause{5};
constexpr Milliseconds kLongestPause{500};

struct Target {
  std::string place;  // address:port
  int64_t patience_ms;
};

[[noreturn]] void fail_unreachable(const Target& target, const std::string& problem) {
  throw Error("cluster", ErrorKind::timeout,
              {.what = fmt::format("rank 0 is not reachable at {} within {}", target.place,
                                   show_span(target.patience_ms)),
               .got = problem,
               .expected = "rank 0 listening there",
               .hint = "MASTER_ADDR must name its machine, and MASTER_PORT be open on it"});
}

[[noreturn]] void fail_foreign(const Target& target, const std::string& said) {
  throw Error("cluster", ErrorKind::usage,
              {.what = fmt::format("another program answers at {}", target.place),
               .got = fmt::format("\"{}\"", said),
               .expected = "the answer of Troika's rank 0",
               .hint = "set MASTER_PORT to a free port, the same on all ranks"});
}

[[noreturn]] void fail_silent(const Target& target, int64_t patience_ms) {
  throw Error("cluster", ErrorKind::timeout,
              {.what = fmt::format("no answer from rank 0 at {} within {}", target.place,
                                   show_span(patience_ms)),
               .got = "a connection that stays silent",
               .expected = "Troika's rank 0",
               .hint = "another program may have the port, or rank 0 is stopped"});
}

// The session's keys; nothing, and why, when another attempt may do better.
std::optional<net::SessionKeys> authenticate(const Target& target, int socket,
                                             const RunSecret& secret, int port, Refusals& refusals,
                                             Deadline deadline, std::string& problem) {
  const auto patience_ms = std::min(target.patience_ms, kGreetingTime.count());
  const auto until = std::min(deadline, Deadline::after(kGreetingTime));
  auto greeting = net::greet(socket, secret.secret, listener_name("ranks", port), until);
  switch (greeting.proof) {
    case net::Proof::given:
      return std::move(greeting.keys);
    case net::Proof::foreign:
      fail_foreign(target, greeting.detail);
    case net::Proof::silent:
      fail_silent(target, patience_ms);
    case net::Proof::refused:
      problem = fmt::format("a connection that ended without an answer ({})", greeting.detail);
      if (!refusals.add()) return std::nullopt;
      break;
    case net::Proof::wrong:
      break;
  }
  throw not_authenticated("rank 0 at " + target.place, greeting, secret);
}

void await_welcome(const Target& target, Connected& connected, Deadline deadline) {
  std::string bytes, text, reason;
  bool open = true;
  while (true) {
    if (const auto frame = connected.in.next()) {
      if (frame->message == Message::welcome) return;
      if (frame->message == Message::refused) throw to_error(frame->value);
      fail_foreign(target, "an unexpected frame");
    }
    if (!open) {
      throw Error("cluster", ErrorKind::peer,
                  {.what = "rank 0 was lost before all ranks had arrived", .got = reason});
    }
    if (!net::wait_for(connected.socket.get(), POLLIN, deadline)) {
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("rank 0 at {} stopped answering", target.place),
                   .got = fmt::format("no word within {}", show_span(target.patience_ms)),
                   .expected = "all ranks, or the names of the missing ones"});
    }
    bytes.clear();
    text.clear();
    open = net::receive(connected.socket.get(), bytes, reason);
    connected.session.opener.open(bytes, text);
    connected.in.feed(text);
  }
}

std::string hello_of(const Environment& environment, const Target& target, Deadline deadline) {
  return encode({Message::hello, 0, "",
                 to_json(Hello{.rank = environment.rank,
                               .world_size = environment.world_size,
                               .run_id = environment.run_id,
                               .host = net::host_name(),
                               .pid = ::getpid(),
                               .patience_ms = target.patience_ms,
                               .left_ms = deadline.left().count()})});
}

}  // namespace

void send_all(int socket, std::string_view bytes, Deadline deadline) {
  std::string reason;
  while (!bytes.empty()) {
    if (!net::send_some(socket, bytes, reason)) {
      throw Error("cluster", ErrorKind::peer, {.what = "rank 0 was lost", .got = reason});
    }
    if (!bytes.empty() && !net::wait_for(socket, POLLOUT, deadline)) {
      throw Error("cluster", ErrorKind::timeout, {.what = "rank 0 stopped reading"});
    }
  }
}

Connected connect_to_server(const Environment& environment, const RunSecret& secret,
                            const std::string& address, int port, Deadline deadline) {
  const Target target{fmt::format("{}:{}", address, port), deadline.left().count()};
  Milliseconds pause = kFirstPause;
  Refusals refusals;
  while (true) {
    const auto attempt_end = std::min(deadline, Deadline::after(kAttemptTime));
    net::Attempt attempt = net::try_connect(address, port, attempt_end);
    std::string problem = attempt.problem;
    if (attempt.socket) {
      net::tune(attempt.socket.get());
      const auto keys =
          authenticate(target, attempt.socket.get(), secret, port, refusals, deadline, problem);
      if (keys) {
        Connected connected{std::move(attempt.socket), net::Session(*keys)};
        send_all(connected.socket.get(),
                 connected.session.sealer.seal(hello_of(environment, target, deadline)), deadline);
        await_welcome(target, connected, Deadline::after(deadline.left() + kVerdictTime));
        return connected;
      }
    }
    if (deadline.left() <= pause) fail_unreachable(target, problem);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace troika::cluster
