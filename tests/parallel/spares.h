// The scheduler and the servers of spare machines, as threads of a test.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <vector>

#include "troika/cluster/discovery/port.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/server/scheduler.h"

namespace troika::parallel {

class Spares {
 public:
  Spares(int servers, int workers) {
    if (servers == 0) return;
    role_ = {.role = server::WorldRole::scheduler,
             .scheduler = fmt::format("127.0.0.1:{}", cluster::free_port()),
             .servers = servers,
             .workers = workers,
             .has_server_beside = true,
             .secret = net::Secret::random(),
             .protection = net::Protection::none};
    for (int i = 0; i <= servers; ++i) {
      threads_.emplace_back([role = role_, i]() mutable {
        server::WorldParts parts{.scheduler = scheduler_options({}), .service = summation_service};
        parts.scheduler.takes_tables = true;
        if (i > 0) {
          role.role = server::WorldRole::server;
          role.index = i - 1;
        }
        server::World world(role, parts);
        world.serve(Deadline::after(std::chrono::minutes(2)));
      });
    }
  }
  ~Spares() {
    for (auto& thread : threads_) thread.join();
  }
  // Returns the role of the worker of a rank; `alone` without spares.
  server::WorldOptions role(int rank) const {
    auto role = role_;
    if (!threads_.empty()) role.role = server::WorldRole::worker;
    role.index = rank;
    return role;
  }

 private:
  server::WorldOptions role_;
  std::vector<std::thread> threads_;
};

}  // namespace troika::parallel
