// The processes of a parameter server, each with a role: one scheduler, servers and workers. A
// program is started once for each of them (`troika launch --servers S --workers W PROGRAM`), and
// finds its role in the environment. The end of one process is not the end of the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/net/dial.h"
#include "troika/net/secret.h"
#include "troika/server/membership.h"
#include "troika/server/server.h"
#include "troika/server/worker.h"

namespace troika::server {

class Scheduler;

enum class WorldRole : uint8_t {
  alone,  // scheduler, servers and one worker are threads of this process
  scheduler,
  server,
  worker,
};

struct WorldOptions {
  WorldRole role = WorldRole::alone;
  int index = 0;          // of this process among those of its role
  std::string scheduler;  // where the scheduler listens: HOST:PORT or [IPv6 address]:PORT
  int servers = 1;        // at the beginning
  int workers = 1;        // at the beginning
  // The servers are in the workers' processes: server i in that of worker i % workers. With 0
  // `servers`, each worker's process has one.
  bool is_embedded = false;
  // Besides the `servers`, which are processes of their own, each worker's process has a server:
  // server number `servers` + i in that of worker i.
  bool has_server_beside = false;
  // The process of the scheduler also has a worker of its own, named kCoordinator, beside the
  // `workers`: for a Coordinator.
  bool has_coordinator = false;
  // This worker's process also has the scheduler, which listens at `scheduler`; port 0: any. Its
  // World must live until the other processes need the scheduler no more.
  bool has_scheduler = false;
  std::string ends = {};              // SchedulerOptions::ends
  std::optional<net::Secret> secret;  // of the run; not used for `alone`
  // How messages in the network are protected; the same in all processes. Each connection proves
  // the secret with all values.
  net::Protection protection = net::Protection::encrypted;
};

// The names of the scheduler's endpoint, and of that of the worker beside it.
inline constexpr const char* kScheduler = "scheduler";
inline constexpr const char* kCoordinator = "coordinator";

// How long a server waits for a silent scheduler unless told.
inline constexpr net::Duration kServerPatience = std::chrono::minutes(2);

// Returns the value of a variable, or nullopt if it is not set.
using VariableOf = std::function<std::optional<std::string>(const std::string& name)>;

// Reads TROIKA_ROLE (scheduler, server, worker), TROIKA_ROLE_INDEX, TROIKA_SCHEDULER,
// TROIKA_SERVERS, TROIKA_WORKERS, TROIKA_EMBEDDED (1 or 0), TROIKA_ENDS (a file, or nothing) and
// TROIKA_RUN_SECRET, which `troika launch` sets, and TROIKA_PROTECTION (none, authenticated or
// encrypted), which a user may set.
// Without TROIKA_ROLE the process is alone. Throws Error(server, usage) that names the variable.
WorldOptions find_world(const VariableOf& variable);
// The same with this process's environment.
WorldOptions find_world();

// The options of the parts, of which a process uses those of its role. The numbers of servers and
// workers to begin with are the world's.
struct WorldParts {
  SchedulerOptions scheduler = {};
  ServerOptions server = {};
  WorkerOptions worker = {};
  // Makes a service of another kind on the endpoint of each server of this process. It ends before
  // the endpoint. Empty: none.
  std::function<std::shared_ptr<void>(net::Endpoint&)> service = {};
};

// Owns this process's endpoints, connects them to those of the other processes, also to those that
// join later or begin again, and runs the parts of its role. Any thread may call its functions.
class World {
 public:
  // Does not block on other processes. Throws Error(server or net, usage) for options that cannot
  // work and for a port in use.
  World(const WorldOptions& options, const WorldParts& parts);
  // Other processes then lose this one, unless it has left.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Whether this process has a worker. If not, it calls serve().
  bool is_worker() const { return worker_ != nullptr; }
  // Blocks until this process's worker can begin, and returns it. Throws Error(server, timeout or
  // peer), and CheckError if there is none.
  Worker& worker(Deadline deadline);
  // The endpoint of this process's worker, for services of other kinds. CheckError without worker.
  net::Endpoint& worker_endpoint();
  // Blocks until all servers to begin with take part and this process's worker is connected to
  // them, and returns the worker's endpoint: for services of other kinds in a world without tables.
  // Throws Error(server): `timeout` that names the servers that are missing, `peer` if the run has
  // ended without some, or the scheduler has been silent for `patience`; and CheckError without
  // worker.
  net::Endpoint& connected_endpoint(Deadline deadline,
                                    net::Duration patience = std::chrono::seconds(30));
  // The same as worker(), for the worker beside the scheduler.
  Worker& coordinating_worker(Deadline deadline);
  // The endpoint of this process's scheduler, to which all other processes are connected.
  net::Endpoint& scheduler_endpoint();
  // Returns why this process's worker cannot go on: the scheduler refuses it, or has been silent
  // for `patience`. Empty: it can.
  std::string trouble(net::Duration patience);
  // Leaves with this process's worker, and blocks until the scheduler has confirmed it. A process
  // that also has a server or the scheduler then serves the other workers until they have ended; a
  // server waits for a silent scheduler as long as the worker (WorkerOptions::patience). Throws
  // like Worker::leave() and serve().
  void leave(Deadline deadline);
  // Blocks as long as this process has work: a scheduler until all workers have ended, a server
  // until the scheduler has ended the run. `is_asked_to_end`, if not empty, is called often, under
  // the rules for callbacks. Once it has returned true, a scheduler also ends when no worker is
  // connected to it, and a server when the scheduler is not. Throws Error(server): `timeout` after
  // the deadline; `peer` if the scheduler refuses this server, or has been silent for `patience`,
  // and for a scheduler if nodes to begin with were lost or did not come;
  // `usage` if this server cannot work, for example without a table's update rule.
  void serve(Deadline deadline, net::Duration patience = kServerPatience,
             const std::function<bool()>& is_asked_to_end = {});

  // This process's scheduler; null if it has none.
  Scheduler* scheduler() { return scheduler_.get(); }
  // Where the scheduler of this process listens, as HOST:PORT; for other processes the given
  // address.
  const std::string& scheduler_address() const { return scheduler_address_; }

 private:
  class Node;

  Node& add_node(const std::string& name, std::vector<net::Address> listen);
  void add_scheduler(SchedulerOptions scheduler);
  void add_server(int index, const WorldParts& parts);
  std::unique_ptr<Worker> add_worker(const std::string& name, WorkerOptions options);
  static Worker& ready(Worker& worker, Node& node, Deadline deadline);
  void serve_scheduler(Deadline deadline, const std::function<bool()>& is_asked_to_end);

  net::Secret secret_;
  net::Protection protection_;
  std::string scheduler_address_;
  int first_servers_;
  net::Duration worker_patience_;
  std::vector<std::unique_ptr<Node>> nodes_;  // before the parts, which use their endpoints
  std::vector<std::shared_ptr<void>> services_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::unique_ptr<Worker> coordinating_worker_;  // on the second of nodes_
  std::unique_ptr<Worker> worker_;
};

}  // namespace troika::server
