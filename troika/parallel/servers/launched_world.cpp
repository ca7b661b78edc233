#include "troika/parallel/servers/launched_world.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/discovery/role_variables.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/parallel/servers/coordination.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/group_error.h"
#include "troika/server/scheduler.h"
#include "troika/server/summation.h"

namespace troika::parallel {

namespace {

// Ranks may download data and time variants before they join.
constexpr auto kJoinTimeout = std::chrono::hours(1);
// For an answer of servers to the coordinator.
constexpr auto kCallTimeout = Milliseconds(std::chrono::minutes(30));

void require(bool holds, const std::string& what, const std::string& got,
             const std::string& expected) {
  if (holds) return;
  throw Error("parallel", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

// Whether no worker of this number has joined the scheduler from this process.
bool is_first_training(const server::WorldOptions& role) {
  static std::mutex mutex;
  static std::set<std::pair<std::string, int>> joined;
  const std::lock_guard lock(mutex);
  return joined.emplace(role.scheduler, role.index).second;
}

}  // namespace

server::WorldOptions launched_role() {
  auto role = server::find_world(cluster::role_variables(cluster::process_variable));
  if (role.is_embedded) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "ranks were launched as workers with servers in their processes",
                 .got = "0 servers",
                 .expected = "at least 1",
                 .hint = "without a launch of servers, the ranks' processes have servers: troika "
                         "launch -n RANKS"});
  }
  return role;
}

std::unique_ptr<server::World> launched_world(const comm::Group& group,
                                              const server::WorldOptions& role,
                                              const layout::ServerExchange& servers,
                                              server::WorldParts parts) {
  const int rank = group.rank(), ranks = group.size();
  require(role.role == server::WorldRole::worker && role.index == rank && role.workers == ranks,
          "ranks are the workers of the parameter server that was launched",
          fmt::format("rank {} of {} as number {} of {} workers", rank, ranks, role.index,
                      role.workers),
          "a worker with the number of its rank, and one for each rank");
  require(servers.count == role.servers, "the number of servers", std::to_string(servers.count),
          fmt::format("the {} that were launched", role.servers));
  require(is_first_training(role), "the parameter server that was launched ends with its workers",
          "a second training in this process", "one");
  const auto deadline = Deadline::after(group.options().timeout);
  auto own = role;
  own.protection = net::protection_from(group.options().protection);
  const bool has_tables = !parts.scheduler.tables.empty();
  parts.worker.patience = limit_of(servers);
  if (rank == 0 && has_tables) {
    parts.worker.brings = {.tables = parts.scheduler.tables, .ranges = parts.scheduler.ranges};
  }
  std::unique_ptr<server::World> world;
  for (int joining = 0; joining < ranks; ++joining) {
    if (rank == joining) {
      world = std::make_unique<server::World>(own, parts);
      if (has_tables) world->worker(deadline);
    }
    // A rank that fails waits with the others, which then try it themselves.
    start_barrier(group, "joining parameter servers").wait();
  }
  return world;
}

void serve(const server::WorldOptions& role, const layout::GradientExchange& exchange) {
  const cluster::StopSignals signals(/*requeue=*/false);
  const auto& servers = exchange.servers;
  server::WorldParts parts;
  parts.scheduler = scheduler_options(servers);
  parts.scheduler.takes_tables = true;
  auto own = role;
  own.has_server_beside = exchange.method == layout::ExchangeMethod::summation;
  own.has_coordinator = exchange.method == layout::ExchangeMethod::sandblaster;
  if (own.has_server_beside) parts.service = summation_service;
  server::World world(own, parts);
  std::optional<Coordination> coordination;
  if (world.scheduler()) {
    if (own.has_coordinator) {
      coordination.emplace(world, exchange.sandblaster, role.workers, kCallTimeout);
    }
    world.scheduler()->wait_for(0, own.has_coordinator ? 2 : 1, Deadline::after(kJoinTimeout));
  }
  world.serve(Deadline::after(std::chrono::years(100)), server::kServerPatience,
              [&] { return signals.asked() != cluster::StopRequest::none; });
}

}  // namespace troika::parallel
