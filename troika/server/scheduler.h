// The scheduler of a parameter server: keeps the list of servers and workers, and decides which
// servers have which ranges of the ring and which step each worker may begin (Li et al., OSDI 2014,
// sections 3.1 and 4.3, where these are the server manager and the workers' task scheduler).
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "troika/server/membership.h"

namespace troika::server {

// A service on an endpoint, which works in the endpoint's callbacks. The endpoint must outlive it,
// and be connected to the endpoints of all servers and workers. Each server and worker has its own
// endpoint, which may be in the same process. If the scheduler ends, servers and workers continue
// until a worker asks for a step or a node is lost. A new scheduler with the same options and
// SchedulerOptions::takes_over, on an endpoint of the same name, can replace it. Any thread may
// call its functions.
class Scheduler {
 public:
  // Throws Error(server, usage) for options that cannot work.
  Scheduler(net::Endpoint& endpoint, SchedulerOptions options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Sets the rule for steps that begin from now on. Does not affect steps that have begun.
  void set_consistency(Consistency consistency);
  // Writes a snapshot: the values and states of all tables after the last step that some worker has
  // begun, which all workers finish first. No later step begins until the snapshot is whole; calls
  // outside of steps may be in it or not. `folder` must not exist; it appears whole, or not at all.
  // All servers must see it under this path. It is written as `folder.part-` and a random number,
  // which stays if this process ends before. Blocks, also until a scheduler that takes over has
  // done so. Throws Error(server): `usage` if the folder exists, `timeout` if a worker has not
  // finished the step by the deadline, `failure` if a server cannot write. Callbacks must not call
  // it.
  void save(const std::filesystem::path& folder, Deadline deadline);
  // Blocks until at least these numbers of servers and workers take part, or the run has ended
  // because some were lost before all had joined. Throws Error(server, timeout) with the present
  // numbers. Callbacks must not call it.
  void wait_for(int servers, int workers, Deadline deadline);
  // Blocks until SchedulerOptions::first_workers workers have joined and all workers have left or
  // were lost; then tells the servers that the run is over. Returns false if `gives_up`, which may
  // be empty and is called often under the rules for callbacks, returned true before. Throws
  // Error(server, timeout). Callbacks must not call it.
  bool wait_for_workers_to_end(Deadline deadline, const std::function<bool()>& gives_up = {});
  RingMap map();
  // See Membership::failure().
  std::string failure();
  // Blocks for `time` at most, until Membership::have_all_heard(). Returns whether they have.
  // Callbacks must not call it.
  bool wait_until_all_have_heard(net::Duration time);
  // Returns the map and the state of each node, as lines of text.
  std::string status();

  // Returns status() of the scheduler whose endpoint has this name, to which `endpoint` must be
  // connected. Blocks. Throws Error(server, timeout). Callbacks must not call it.
  static std::string ask_for_status(net::Endpoint& endpoint, const std::string& scheduler,
                                    Deadline deadline);

 private:
  void take(const std::string& peer, const std::string& message);
  void tick();
  // Reads SchedulerOptions::ends. Returns whether other nodes must get a new state.
  bool note_ends();
  void tell(const std::string& name);
  void tell_all();

  net::Endpoint& endpoint_;
  const net::Duration interval_;
  const std::string ends_;        // SchedulerOptions::ends
  net::Duration next_notice_{0};  // if nodes are missing
  Membership membership_;
  net::Ticket timer_ = 0;
  std::mutex saving_;
};

}  // namespace troika::server
