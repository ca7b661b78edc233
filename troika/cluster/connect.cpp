#include "troika/cluster/connect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/listen.h"
#include "troika/cluster/roster.h"
#include "troika/net/interface.h"
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

// The server's answer to a hello; nothing when a relay's connection ends before.
std::optional<Frame> await_word(const Target& target, Connected& connected, bool is_relay,
                                Deadline deadline) {
  std::string bytes, text, reason;
  bool open = true;
  while (true) {
    if (auto frame = connected.in.next()) {
      switch (frame->message) {
        case Message::welcome:
        case Message::go:
        case Message::relay:
          return frame;
        case Message::refused:
          throw to_error(frame->value);
        case Message::bye:
          open = false;
          is_relay = false;
          reason = frame->value;
          break;
        default:
          fail_foreign(target, "an unexpected frame");
      }
    }
    if (!open && is_relay) return std::nullopt;
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

struct Manner {
  int relay_port = 0;   // where this rank could relay
  bool direct = false;  // through no relay
};

std::string hello_of(const Environment& environment, const Target& target, Manner manner,
                     Deadline deadline) {
  return encode({Message::hello, 0, "",
                 to_json(Hello{.rank = environment.rank,
                               .world_size = environment.world_size,
                               .run_id = environment.run_id,
                               .host = net::host_name(),
                               .pid = ::getpid(),
                               .patience_ms = target.patience_ms,
                               .left_ms = deadline.left().count(),
                               .machine = net::loopback_id(),
                               .relay_port = manner.relay_port,
                               .direct = manner.direct})});
}

// An authenticated connection to rank 0's server.
Connected reach_server(const Entrance& entrance, const Target& target, bool retries,
                       Deadline deadline) {
  const auto& [environment, secret, address, port, rules] = entrance;
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
      if (keys) return {std::move(attempt.socket), net::Session(*keys)};
    }
    if (!retries || deadline.left() <= pause) fail_unreachable(target, problem);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

// The same to a relay on this machine; nothing when it is gone or out of reach.
std::optional<Connected> reach_relay(const Entrance& entrance, int port, Deadline deadline) {
  const auto until = std::min(deadline, Deadline::after(kGreetingTime));
  net::Attempt attempt = net::try_connect("127.0.0.1", port, until);
  if (!attempt.socket) return std::nullopt;
  net::tune(attempt.socket.get());
  const auto greeting =
      net::greet(attempt.socket.get(), entrance.secret.secret, listener_name("relay", port), until);
  if (!greeting.keys) return std::nullopt;
  return Connected{std::move(attempt.socket), net::Session(*greeting.keys)};
}

// How a rank takes part: its hello, and what the server or a relay says to it.
class Joining {
 public:
  Joining(const Entrance& entrance, Deadline deadline)
      : entrance_(entrance),
        target_{fmt::format("{}:{}", entrance.address, entrance.port), deadline.left().count()},
        deadline_(deadline),
        verdict_time_(Deadline::after(deadline.left() + kVerdictTime)) {}

  Connected reach_server(bool retries) const {
    return cluster::reach_server(entrance_, target_, retries, deadline_);
  }
  // Nothing when a relay's connection ends before.
  std::optional<Frame> ask(Connected& connection, Manner manner, bool is_relay = false) const {
    const auto hello = hello_of(entrance_.environment, target_, manner, deadline_);
    send_all(connection.socket.get(), connection.session.sealer.seal(hello), deadline_);
    return await_word(target_, connection, is_relay, verdict_time_);
  }
  Joined join_directly(Connected server) const {
    const auto welcome = ask(server, {.direct = true}).value();
    return {{}, std::move(server), 0, welcome.value};
  }

 private:
  const Entrance& entrance_;
  const Target target_;
  const Deadline deadline_;
  const Deadline verdict_time_;
};

bool can_relay(const Entrance& entrance) {
  const auto& environment = entrance.environment;
  return environment.rank != 0 && environment.local_world_size > 1 &&
         environment.world_size >= entrance.rules.from_world_size;
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

Joined join_run(const Entrance& entrance, Deadline deadline) {
  const Joining joining(entrance, deadline);
  RelayPort here = can_relay(entrance) ? open_relay_port() : RelayPort{};
  std::optional<Connected> server = joining.reach_server(true);
  const Frame word = joining.ask(*server, {.relay_port = here.port}).value();
  if (word.message == Message::welcome) return {{}, std::move(*server), 0, word.value};

  const int own_rank = entrance.environment.rank;
  const bool relays = word.message == Message::relay;
  const int rank = relays ? own_rank : static_cast<int>(parse_int(word.value).value_or(0));
  const int port = relays ? here.port : static_cast<int>(word.number);
  std::unique_ptr<Relay> relay;
  if (relays) {
    relay = std::make_unique<Relay>(std::move(here), entrance.secret,
                                    entrance.environment.world_size, *std::move(server));
  }
  auto through = reach_relay(entrance, port, deadline);
  if (!through && !relays) return joining.join_directly(*std::move(server));
  server.reset();
  const auto welcome = through ? joining.ask(*through, {}, true) : std::nullopt;
  if (welcome) return {std::move(relay), *std::move(through), rank, welcome->value};
  relay.reset();
  try {
    server = joining.reach_server(false);
  } catch (const Error&) {
    // Rank 0 has ended over it.
    throw Error("cluster", ErrorKind::peer,
                {.what = fmt::format("rank {} was lost before all ranks had arrived", rank),
                 .got = "its connection closed"});
  }
  return joining.join_directly(*std::move(server));
}

Joined come_back(const Entrance& entrance, Deadline deadline) {
  const Joining joining(entrance, deadline);
  return joining.join_directly(joining.reach_server(false));
}

}  // namespace troika::cluster
