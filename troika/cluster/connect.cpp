#include "troika/cluster/connect.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "troika/base/error.h"
#include "troika/cluster/roster.h"
#include "troika/cluster/socket.h"

namespace troika::cluster {

namespace {

// The server ends the gathering at the first deadline of any rank and tells all of them why; this
// much longer its word may take to arrive.
constexpr Milliseconds kVerdictTime{2000};
// A connection attempt to a machine that is not up yet must not eat the whole time.
constexpr Milliseconds kAttemptTime{5000};
// A machine that is up refuses connections while rank 0 is still to come. One of which nothing is
// heard for this long has a wrong name or is behind a firewall, and waiting would not help.
constexpr Milliseconds kUnheardTime{8000};
// Rank 0 greets as soon as it accepts.
constexpr Milliseconds kGreetingTime{5000};
constexpr Milliseconds kFirstPause{5};
constexpr Milliseconds kLongestPause{500};

struct Target {
  std::string place;  // address:port
  int64_t patience_ms;
};

[[noreturn]] void fail_unreachable(const Target& target, int64_t patience_ms,
                                   const std::string& problem) {
  throw Error("cluster", ErrorKind::timeout,
              {.what = fmt::format("rank 0 is not reachable at {} within {}", target.place,
                                   show_span(patience_ms)),
               .got = problem,
               .expected = "rank 0 listening there",
               .hint = "MASTER_ADDR must name its machine, and MASTER_PORT be open on it"});
}

[[noreturn]] void fail_foreign(const Target& target, std::string_view bytes) {
  std::string shown;
  for (const char c : bytes.substr(0, 24)) shown += c >= ' ' && c <= '~' ? c : '?';
  throw Error("cluster", ErrorKind::usage,
              {.what = fmt::format("another program answers at {}", target.place),
               .got = fmt::format("\"{}\"", shown),
               .expected = "the greeting of Troika's rank 0",
               .hint = "set MASTER_PORT to a free port, the same on all ranks"});
}

// Waits for the server's greeting. Empty when it came, else why to try again.
std::string await_greeting(const Target& target, Connected& connected, Deadline deadline) {
  std::string bytes;
  const auto patience_ms = std::min(target.patience_ms, kGreetingTime.count());
  if (deadline.left() > kGreetingTime) deadline = Deadline::after(kGreetingTime);
  while (true) {
    if (!wait_for(connected.socket.get(), POLLIN, deadline)) {
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("no greeting from rank 0 at {} within {}", target.place,
                                       show_span(patience_ms)),
                   .got = "a connection that stays silent",
                   .expected = "Troika's rank 0",
                   .hint = "another program may have the port, or rank 0 is stopped"});
    }
    std::string reason;
    bytes.clear();
    const bool open = receive(connected.socket.get(), bytes, reason);
    connected.in.feed(bytes);
    const auto start = connected.in.peek().substr(0, kServerGreeting.size());
    if (start != kServerGreeting.substr(0, start.size())) fail_foreign(target, connected.in.peek());
    if (connected.in.raw(kServerGreeting.size())) return "";
    // Perhaps the server of a run that is just ending.
    if (!open) return "a connection that ended without a greeting (" + reason + ")";
  }
}

void await_welcome(const Target& target, Connected& connected, Deadline deadline) {
  std::string bytes, reason;
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
    if (!wait_for(connected.socket.get(), POLLIN, deadline)) {
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("rank 0 at {} stopped answering", target.place),
                   .got = fmt::format("no word within {}", show_span(target.patience_ms)),
                   .expected = "all ranks, or the names of the missing ones"});
    }
    bytes.clear();
    open = receive(connected.socket.get(), bytes, reason);
    connected.in.feed(bytes);
  }
}

}  // namespace

void send_all(int socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLOUT, deadline)) {
        throw Error("cluster", ErrorKind::timeout, {.what = "rank 0 stopped reading"});
      }
    } else if (errno != EINTR) {
      throw Error("cluster", ErrorKind::peer,
                  {.what = "rank 0 was lost", .got = system_reason(errno)});
    }
  }
}

Connected connect_to_server(const Environment& environment, const std::string& address, int port,
                            Deadline deadline) {
  const Target target{fmt::format("{}:{}", address, port), deadline.left().count()};
  Milliseconds pause = kFirstPause;
  auto unheard = Deadline::after(kUnheardTime);
  while (true) {
    const auto attempt_time = std::min({deadline.left(), unheard.left(), kAttemptTime});
    Attempt attempt = try_connect(address, port, Deadline::after(attempt_time));
    if (attempt.heard) unheard = Deadline::after(kUnheardTime);
    std::string problem = attempt.problem;
    if (attempt.socket) {
      tune(attempt.socket.get());
      Connected connected{std::move(attempt.socket), {}};
      const Hello hello{.rank = environment.rank,
                        .world_size = environment.world_size,
                        .run_id = environment.run_id,
                        .host = host_name(),
                        .pid = ::getpid(),
                        .patience_ms = target.patience_ms,
                        .left_ms = deadline.left().count()};
      try {
        // Both at once: a foreign server that waits for a request answers this one.
        send_all(connected.socket.get(),
                 std::string(kClientGreeting) + encode({Message::hello, 0, "", to_json(hello)}),
                 deadline);
        problem = await_greeting(target, connected, deadline);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::peer) throw;
        problem = error.what();
      }
      if (problem.empty()) {
        await_welcome(target, connected, Deadline::after(deadline.left() + kVerdictTime));
        return connected;
      }
    }
    if (deadline.left() <= pause) fail_unreachable(target, target.patience_ms, problem);
    if (unheard.left() <= pause) fail_unreachable(target, kUnheardTime.count(), problem);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace troika::cluster
