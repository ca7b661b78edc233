#include "troika/cluster/elastic/agent_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/cluster/discovery/port.h"

namespace troika::cluster {

namespace {

// The time that the kernel may need to end processes. A machine without power is detected after
// half a minute (net::tune(), socket.h). This time is longer, because that error is clearer.
constexpr Milliseconds kStopSlack{40'000};

RoundRules rules_of(const LaunchOptions& options) {
  return {.min_nodes = options.elastic->min_nodes,
          .max_nodes = options.num_nodes,
          .max_restarts = options.max_restarts,
          .last_call_timeout = options.elastic->last_call_timeout,
          .join_timeout = options.elastic->join_timeout,
          .stop_timeout = options.shutdown_timeout + options.grace_time + kStopSlack};
}

}  // namespace

RoundService::RoundService(net::Endpoint& endpoint, const LaunchOptions& options,
                           const AgentHello& host, const std::string& address,
                           std::function<std::string()> unwelcome)
    : Service(endpoint),
      unwelcome_(std::move(unwelcome)),
      rounds_(
          rules_of(options), host,
          [address, port = options.master_port,
           run_id = options.elastic->id.empty() ? unique_run_id() : options.elastic->id] {
            return LaunchPlace{
                .address = address, .port = port != 0 ? port : free_port(), .run_id = run_id};
          },
          [this](int agent, const Frame& frame) { send_to(agent, frame); },
          [&endpoint] { return endpoint.now(); }) {}

void RoundService::send_to(int agent, const Frame& frame) {
  const auto entry =
      std::ranges::find(peers(), agent, [](const auto& named) { return named.second.rank; });
  if (entry == peers().end()) return;
  send(entry->second, frame);
  const bool is_last = frame.message == Message::refused || frame.message == Message::over;
  if (is_last) close(entry->second);
}

void RoundService::handle(Peer& from, const Frame& frame) {
  if (!from.admitted()) return greet(from, frame);
  switch (frame.message) {
    case Message::failing:
      return rounds_.failing(from.rank);
    case Message::ended:
      if (const auto end = round_end_from_json(frame.value)) return rounds_.ended(from.rank, *end);
      break;
    case Message::depart:
      return rounds_.depart(from.rank, static_cast<int>(frame.number));
    default:
      break;
  }
  end(from, "it sent what no launch sends");
}

void RoundService::greet(Peer& from, const Frame& frame) {
  const auto hello =
      frame.message == Message::join ? agent_hello_from_json(frame.value) : std::nullopt;
  if (!hello) {
    return refuse(from, {ErrorKind::usage,
                         {.what = "this port is for launches of an elastic run",
                          .got = "another version of Troika",
                          .expected = "a launch"}});
  }
  // Assigned first, because Rounds may send to it.
  from.rank = agents_++;
  if (const auto why = rounds_.admit(from.rank, *hello)) refuse(from, *why);
}

void RoundService::part_from(Peer& gone) {
  if (gone.admitted()) rounds_.lost(gone.rank, gone.reason);
}

std::optional<net::Duration> RoundService::due() const {
  return rounds_.due();
}

void RoundService::late() {
  rounds_.late(unwelcome_());
}

AgentServer::AgentServer(Listening here, const RunSecret& secret, const LaunchOptions& options,
                         const AgentHello& host, const std::string& address)
    : endpoint_(std::move(here), secret, Role::launches),
      service_(endpoint_, options, host, address, [this] { return endpoint_.unwelcome_text(); }) {
  endpoint_.start(service_);
}

}  // namespace troika::cluster
