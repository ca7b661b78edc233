// The scheduler's rules, without messages and threads: which nodes take part, which servers have
// which ranges, and which step each worker may begin. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/consistency.h"
#include "troika/server/control.h"
#include "troika/server/ring_map.h"

namespace troika::server {

struct SchedulerOptions {
  std::vector<TableSpec> tables;
  // The number of ranges of the ring (virtual servers). Choose several for each server that may
  // join.
  uint32_t ranges = 64;
  // The number of copies of each range besides the master's. This many servers may be lost at a
  // time without loss of acknowledged writes.
  int replicas = 0;
  // The ranges are assigned when `first_servers` servers are there. The first step begins when
  // `first_workers` workers have joined, also if some of them have left or were lost since.
  int first_servers = 1;
  int first_workers = 1;
  // If one of these is missing this long after the first worker has joined, the run ends: all
  // nodes are refused, with what is missing as the reason.
  net::Duration join_timeout = std::chrono::minutes(5);
  // A node that sends no beat for this time is lost.
  net::Duration limit = std::chrono::seconds(2);
  Consistency consistency = sequential();
  // A folder of Scheduler::save(), with the same tables and number of ranges, from which the values
  // are read. The servers must see it under this path. Empty: values begin as the tables say.
  std::string snapshot = {};
  // This scheduler replaces one that was lost, with the same options: it learns the map from the
  // servers and workers of that one, and waits `limit` for them.
  bool takes_over = false;
  // The tables and the number of ranges are those of the first worker that brings some
  // (WorkerOptions::brings). `tables`, `snapshot` and `takes_over` must not be set.
  bool takes_tables = false;
  // A file to which the launch adds a line for each process that fails or is killed: its name, and
  // how it has ended. Empty: none.
  std::string ends = {};
};

struct NodeCounts {
  int servers = 0;
  int workers = 0;
};

class Membership {
 public:
  // `first_committed`: the step of the snapshot; -1 without one. Throws Error(server, usage) for
  // options that cannot work.
  explicit Membership(SchedulerOptions options, int64_t first_committed = -1);

  // Processes a beat. Returns whether other nodes must get a new state.
  bool take(const std::string& name, const Beat& beat, net::Duration now);
  // Removes lost nodes. Returns whether other nodes must get a new state. Must be called several
  // times within SchedulerOptions::limit: if it was not, the scheduler itself was stopped, and no
  // node is lost for that time.
  bool expire(net::Duration now);
  // Processes the news that a process has ended. Returns whether other nodes must get a new state.
  bool note_end(const std::string& name, const std::string& how);
  bool set_consistency(Consistency consistency);

  // Whether this scheduler still learns the map from the nodes. If not, it never will again.
  bool is_taking_over() const { return recovery_.is_under_way; }
  // Begins a snapshot into a folder that exists: workers may finish the steps that some worker has
  // begun, and when they have, servers write their ranges. None may be under way, and
  // is_taking_over() must be false.
  void begin_snapshot(const std::string& folder);
  // Returns the index when all ranges are written.
  std::optional<SnapshotIndex> finished_snapshot() const;
  // Returns why the snapshot cannot succeed; empty if it can.
  const std::string& snapshot_problem() const { return snapshot_.problem; }
  // Returns what the snapshot waits for, for messages.
  std::string snapshot_wait() const;
  // Steps begin again.
  void end_snapshot();

  // Returns the state for a node that has sent a beat, and the names of the nodes that must get new
  // states.
  State state_for(const std::string& name) const;
  std::vector<std::string> nodes() const;
  NodeCounts counts() const;
  // Whether `first_workers` have joined, and all workers have left or were lost since; or the run
  // was ended because some had not.
  bool have_workers_ended() const;
  // Why the run was ended: nodes to begin with have not joined or were lost too early. Empty: it
  // was not.
  const std::string& failure() const { return beginning_.failure; }
  // Whether all nodes to begin with have come and were told that the run was ended, or have ended.
  bool have_all_heard() const;
  // Returns which of the nodes to begin with are missing; empty once all were there, and before the
  // first worker.
  std::string missing() const;
  // Tells servers that they may end.
  void end_run() { is_over_ = true; }
  const RingMap& map() const { return map_; }
  // Returns a readable text: the map, and each node with its last beat.
  std::string status(net::Duration now) const;

 private:
  struct Node {
    Beat beat;
    net::Duration heard{0};
    uint64_t worker = 0;  // its number; 0 for servers
    int64_t granted = -1;
    int64_t before_first = -1;
  };

  // A node that was lost, has left or was refused.
  struct Removed {
    uint64_t instance = 0;
    bool is_leaving = false;
    std::string refusal;  // for a node that did not leave
    bool is_worker = false;
  };

  struct Snapshot {
    uint64_t number = 0;  // random, so that schedulers have different ones; 0: none is under way
    std::string folder;
    int64_t last_step = -1;   // the last step that may begin
    bool is_drained = false;  // all workers have finished it
    std::map<uint32_t, SavedRange> saved;
    std::string problem;
  };
  // The knowledge that a scheduler that takes over has from the nodes.
  struct Recovery {
    bool is_under_way = false;
    // When the first node that knows a map was heard; before that, the first node.
    std::optional<net::Duration> began;
    RingMap map;             // the newest one
    int64_t committed = -1;  // the last step that some node knows as finished by all workers
  };

  // The beginning of the run.
  struct Beginning {
    std::set<std::string> workers;       // all that have joined until the first step
    std::optional<net::Duration> since;  // when the first one has
    std::string failure;                 // why the run has ended without its first step
  };

  void recover(const std::string& name, const Beat& beat, net::Duration now);
  void finish_recovery();
  void update_snapshot();
  // Ends a snapshot that lost ranges make impossible.
  void find_lost_ranges();
  void take_saved(const std::string& name, const Beat& beat);
  // Takes the tables that a worker brings, if there are none yet.
  void take_tables(const Beat& beat);
  // Returns false if the node is refused.
  bool join(const std::string& name, const Beat& beat, net::Duration now);
  void remove(const std::string& name);
  // Refuses all nodes.
  void fail(const std::string& reason);
  // Whether no other node can do what this one was to do, because the ranges are not assigned or
  // there are none and no worker has left, or because it is a worker and not all have joined.
  bool is_needed(Role role, const std::string& name) const;
  // Returns whether the time to join is over and some are missing.
  bool end_if_some_are_missing(net::Duration now);
  void take_copies(const std::string& name, const Beat& beat);
  void update_ranges();
  bool update_steps();
  bool may_leave(const std::string& name, const Node& node) const;
  std::string directory() const;

  const SchedulerOptions options_;
  Consistency consistency_;
  RingMap map_;
  bool is_assigned_ = false;  // first_servers have joined
  bool has_begun_ = false;    // first_workers have joined
  Beginning beginning_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Removed> removed_;
  std::set<std::string> ended_;  // of note_end()
  uint64_t last_worker_ = 0;
  int64_t committed_ = -1;
  net::Duration last_expire_{0};
  Snapshot snapshot_;
  Recovery recovery_;
  bool is_over_ = false;
};

}  // namespace troika::server
