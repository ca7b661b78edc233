#include "troika/cluster/rendezvous/connect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/rendezvous/roster.h"
#include "troika/net/interface.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// The server ends the gathering at the first deadline of any rank and sends the reason to all
// ranks. The reason may take this much longer to arrive.
constexpr Milliseconds kVerdictTime{2000};
// Rank 0 answers as soon as it has read the message.
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

// Throws unless another attempt may succeed.
void require_hope(const Target& target, const net::DialFailure& failure, const RunSecret& secret,
                  Refusals& refusals) {
  using Kind = net::DialFailure::Kind;
  switch (failure.kind) {
    case Kind::foreign:
      fail_foreign(target, failure.detail);
    case Kind::silent:
      fail_silent(target, std::min(target.patience_ms, kGreetingTime.count()));
    case Kind::refused:
      if (!refusals.add()) return;
      break;
    case Kind::wrong:
      break;
    case Kind::unreachable:
    case Kind::busy:
      return;
  }
  throw not_authenticated("rank 0 at " + target.place, failure, secret);
}

// The reason for fail_unreachable().
std::string why_unreachable(const net::DialFailure& failure) {
  return failure.kind == net::DialFailure::Kind::refused
             ? fmt::format("a connection that ended without an answer ({})", failure.detail)
             : failure.detail;
}

// Returns the server's answer to a hello; nullopt if the connection ends before, where it may.
std::optional<Frame> await_word(const Target& target, Line& line, bool may_end, Deadline deadline) {
  const auto lost = [](const std::string& reason) {
    return Error("cluster", ErrorKind::peer,
                 {.what = "rank 0 was lost before all ranks had arrived", .got = reason});
  };
  while (true) {
    const auto frame = line.next(deadline);
    if (!frame) {
      if (const auto end = line.ended()) {
        if (may_end) return std::nullopt;
        throw lost(*end);
      }
      if (!deadline.passed()) continue;
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("rank 0 at {} stopped answering", target.place),
                   .got = fmt::format("no word within {}", show_span(target.patience_ms)),
                   .expected = "all ranks, or the names of the missing ones"});
    }
    switch (frame->message) {
      case Message::welcome:
      case Message::go:
      case Message::relay:
        return frame;
      case Message::refused:
        throw to_error(frame->value);
      case Message::bye:
        throw lost(frame->value);
      default:
        fail_foreign(target, "an unexpected frame");
    }
  }
}

struct Manner {
  int relay_port = 0;   // port of this rank's relay, if it can relay
  bool direct = false;  // do not use a relay
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

// The exchange of a joining rank with the server or a relay: its hello and the answers.
class Joining {
 public:
  Joining(const Entrance& entrance, Deadline deadline)
      : entrance_(entrance),
        target_{fmt::format("{}:{}", entrance.address, entrance.port), deadline.left().count()},
        deadline_(deadline),
        verdict_time_(Deadline::after(deadline.left() + kVerdictTime)) {}

  void reach_server(Line& line, bool retries) const {
    const auto& [environment, secret, address, port, rules] = entrance_;
    const auto key = role_key(secret, Role::ranks);
    Milliseconds pause = kFirstPause;
    Refusals refusals;
    while (const auto failure =
               line.go_to(listener_name(Role::ranks, port), {address, port}, key, deadline_)) {
      require_hope(target_, *failure, secret, refusals);
      if (!retries || deadline_.left() <= pause)
        fail_unreachable(target_, why_unreachable(*failure));
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
    }
  }
  // Returns nullopt if the connection ends before the answer, where it may.
  std::optional<Frame> ask(Line& line, Manner manner, bool may_end = false) const {
    line.post(hello_of(entrance_.environment, target_, manner, deadline_));
    return await(line, may_end);
  }
  std::optional<Frame> await(Line& line, bool may_end = false) const {
    return await_word(target_, line, may_end, verdict_time_);
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

// Joins through the relay that the server named in `word`; directly if the relay is unreachable.
Joined join_through(const Entrance& entrance, const Joining& joining, std::unique_ptr<Line> line,
                    const Frame& word, Deadline deadline) {
  const int rank = static_cast<int>(parse_int(word.value).value_or(0));
  const bool is_there = !line->go_to(word.key, {"127.0.0.1", static_cast<int>(word.number)},
                                     role_key(entrance.secret, Role::relay),
                                     std::min(deadline, Deadline::after(kGreetingTime)));
  if (!is_there) {
    const auto welcome = joining.ask(*line, {.direct = true}).value();
    return {std::move(line), 0, welcome.value};
  }
  if (const auto welcome = joining.ask(*line, {}, true)) {
    return {std::move(line), rank, welcome->value};
  }
  // Rank 0 may have ended the run because the relay was lost, and be gone already.
  const auto is_server_there = [&] {
    try {
      joining.reach_server(*line, false);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  if (is_server_there()) {
    if (const auto welcome = joining.ask(*line, {.direct = true}, true)) {
      return {std::move(line), 0, welcome->value};
    }
  }
  throw Error("cluster", ErrorKind::peer,
              {.what = fmt::format("rank {} was lost before all ranks had arrived", rank),
               .got = "its connection closed"});
}

}  // namespace

std::unique_ptr<Line> make_line(const Entrance& entrance) {
  return std::make_unique<Line>(Line::Options{.server = listener_name(Role::ranks, entrance.port),
                                              .world_size = entrance.environment.world_size,
                                              .may_relay = can_relay(entrance)},
                                entrance.secret);
}

Joined join_run(const Entrance& entrance, std::unique_ptr<Line> line, Deadline deadline) {
  const Joining joining(entrance, deadline);
  joining.reach_server(*line, true);
  const Frame word = joining.ask(*line, {.relay_port = line->relay_port()}).value();
  if (word.message == Message::relay) {
    const Frame welcome = joining.await(*line).value();
    return {std::move(line), entrance.environment.rank, welcome.value};
  }
  line->relay_for_nobody();
  if (word.message == Message::welcome) return {std::move(line), 0, word.value};
  return join_through(entrance, joining, std::move(line), word, deadline);
}

std::string come_back(const Entrance& entrance, Line& line, Deadline deadline) {
  const Joining joining(entrance, deadline);
  joining.reach_server(line, false);
  return joining.ask(line, {.direct = true}).value().value;
}

}  // namespace troika::cluster
