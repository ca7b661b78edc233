// The scheduler's rules, without messages and threads: which nodes take part, which servers have
// which ranges, and which step each worker may begin. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
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
  // The ranges are assigned when `first_servers` servers have joined. The first step begins when
  // `first_workers` workers have joined.
  int first_servers = 1;
  int first_workers = 1;
  // A node that sends no beat for this time is lost.
  net::Duration limit = std::chrono::seconds(2);
  Consistency consistency = sequential();
};

struct NodeCounts {
  int servers = 0;
  int workers = 0;
};

class Membership {
 public:
  // Throws Error(server, usage) for options that cannot work.
  explicit Membership(SchedulerOptions options);

  // Processes a beat. Returns whether other nodes must get a new state.
  bool take(const std::string& name, const Beat& beat, net::Duration now);
  // Removes lost nodes. Returns whether other nodes must get a new state.
  bool expire(net::Duration now);
  bool set_consistency(Consistency consistency);

  // Returns the state for a node that has sent a beat, and the names of the nodes that must get new
  // states.
  State state_for(const std::string& name) const;
  std::vector<std::string> nodes() const;
  NodeCounts counts() const;
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

  void join(const std::string& name, const Beat& beat, net::Duration now);
  void remove(const std::string& name);
  void take_copies(const std::string& name, const Beat& beat);
  void update_ranges();
  bool update_steps();
  bool may_leave(const std::string& name, const Node& node) const;

  const SchedulerOptions options_;
  Consistency consistency_;
  RingMap map_;
  bool is_assigned_ = false;  // first_servers have joined
  bool has_begun_ = false;    // first_workers have joined
  std::map<std::string, Node> nodes_;
  std::map<std::string, Beat> removed_;  // the last beat of each node that was lost or has left
  uint64_t last_worker_ = 0;
  int64_t committed_ = -1;
};

}  // namespace troika::server
