#include "troika/comm/world.h"

#include "troika/comm/backend.h"
#include "troika/comm/local/local.h"

namespace troika::comm {

std::string choose_backend(const cluster::Environment& environment) {
  if (environment.world_size == 1) return "local";
  const bool by_mpi = environment.launcher == "openmpi" || environment.launcher == "pmi";
  return by_mpi && mpi::why_unavailable().empty() ? "mpi" : "gloo";
}

Group world(const WorldOptions& options) {
  return world(cluster::discover(), options);
}

Group world(const cluster::Environment& environment, const WorldOptions& options) {
  const std::string name =
      options.backend == "auto" ? choose_backend(environment) : options.backend;
  if (name == "local" && environment.world_size == 1) return local::alone(options.group);
  return Group(backend(name).make(environment, Deadline::after(options.join_timeout)),
               options.group);
}

}  // namespace troika::comm
