#include "troika/parallel/servers/embedded_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/server/scheduler.h"
#include "troika/server/summation.h"

namespace troika::parallel {

namespace {

// Each range of a table is one message, and its state up to three times as long.
constexpr int64_t kRangeBytes = int64_t{64} << 20;
constexpr int64_t kRangesOfServer = 4;

// Where the scheduler in this process is to listen, on any free port.
std::string listening_address(const comm::Group& group) {
  if (std::ranges::max(group.nodes()) == 0) return "127.0.0.1:0";
  const auto host = cluster::discover().master_address;
  if (host.empty()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameter servers on several machines need rank 0's address",
                 .got = "none",
                 .hint = "set MASTER_ADDR on all machines"});
  }
  return host.find(':') == std::string::npos ? host + ":0" : fmt::format("[{}]:0", host);
}

}  // namespace

net::Duration limit_of(const layout::ServerExchange& servers) {
  return std::chrono::duration_cast<net::Duration>(
      std::chrono::duration<double>(servers.limit_seconds));
}

server::SchedulerOptions scheduler_options(const layout::ServerExchange& servers) {
  server::SchedulerOptions options;
  options.replicas = static_cast<int>(servers.replicas);
  options.limit = limit_of(servers);
  options.consistency =
      servers.consistency == "eventual" ? server::eventual() : server::bounded_delay(servers.delay);
  return options;
}

uint32_t ranges_of(const layout::ServerExchange& servers, int ranks, int64_t bytes) {
  const int64_t count = servers.count > 0 ? servers.count : ranks;
  return static_cast<uint32_t>(kRangesOfServer * count + bytes / kRangeBytes);
}

std::shared_ptr<void> summation_service(net::Endpoint& endpoint) {
  return std::make_shared<server::SummationServer>(endpoint);
}

std::unique_ptr<server::World> embedded_world(const comm::Group& group,
                                              const layout::ServerExchange& servers,
                                              server::WorldParts parts, bool has_coordinator) {
  const int rank = group.rank(), ranks = group.size();
  const auto deadline = Deadline::after(group.options().timeout);
  // A name of its own for each world, because servers of two runs may have one user's secret.
  const auto id =
      group.broadcast_text(rank == 0 ? net::Secret::random().to_hex() : "", 0, "servers");
  server::WorldOptions options{
      .role = server::WorldRole::worker,
      .index = rank,
      .scheduler = {},
      .servers = static_cast<int>(servers.count),
      .workers = ranks,
      .is_embedded = true,
      .has_coordinator = has_coordinator,
      .has_scheduler = rank == 0,
      .secret = cluster::find_secret(id).secret.derive("parameter server", id),
      .protection = net::protection_from(group.options().protection)};
  parts.worker.patience = limit_of(servers);
  std::unique_ptr<server::World> world;
  for (int joining = 0; joining < ranks; ++joining) {
    if (rank == joining) {
      if (rank == 0) options.scheduler = listening_address(group);
      world = std::make_unique<server::World>(options, parts);
    }
    if (rank == 0) world->scheduler()->wait_for(0, joining + 1 + has_coordinator, deadline);
    const auto address =
        group.broadcast_text(rank == 0 ? world->scheduler_address() : "", 0, "servers");
    options.scheduler = address;
  }
  return world;
}

}  // namespace troika::parallel
