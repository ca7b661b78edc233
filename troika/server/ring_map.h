// The map of the ring: which servers have which range. The scheduler makes it, and sends it to
// every node as text.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "troika/server/table.h"

namespace troika::server {

// A server that is getting a copy of a range.
struct Joiner {
  std::string server;
  uint64_t since = 0;  // the first generation of the map with this joiner

  bool operator==(const Joiner&) const = default;
};

struct RangeHolders {
  // Servers with a whole copy. The first one, the master, answers workers. It sends every write to
  // the others before it acknowledges the write.
  std::vector<std::string> holders;
  // Servers to which the master sends a copy, and after that all writes.
  std::vector<Joiner> joiners;
  // All holders were lost, and the values with them.
  bool is_lost = false;

  bool operator==(const RangeHolders&) const = default;
};

struct RingMap {
  // Increases with each change. 0: no map yet.
  uint64_t generation = 0;
  std::vector<TableSpec> tables;
  // The folder of the snapshot that the first holders of the ranges read; empty if there is none.
  std::string origin;
  std::vector<RangeHolders> ranges;
  std::map<uint64_t, std::string> workers;  // the workers that take part, by number
  // The last finished step of workers that have left or were lost, by number.
  std::map<uint64_t, int64_t> departed;

  // The server that answers for a range; empty if it is lost.
  std::string master(uint32_t range) const;
  // Whether the server has or is getting a copy of the range, or of any range.
  bool has_server(uint32_t range, const std::string& server) const;
  bool has_server(const std::string& server) const;

  bool operator==(const RingMap&) const = default;
};

// Throws Error(server, usage) for tables that cannot work together, and for a number of ranges that
// a map cannot have.
void check_tables(const std::vector<TableSpec>& tables, size_t ranges);

// Tables and the number of ranges of the ring, for a scheduler that takes them from a worker.
struct BroughtTables {
  std::vector<TableSpec> tables = {};
  uint32_t ranges = 64;
};

// Returns them as a map of generation 0; an empty text if there are no tables. Throws like
// check_tables().
std::string to_text(const BroughtTables& brought);

// Returns lines: `generation 3`, `table SPEC`, `origin FOLDER`, `ranges 0-7 s0 s1`, `ranges 8-15 s1
// +s2@3` (s2 is getting copies since generation 3), `ranges 16-16 lost`, `worker 1 w0`, `departed 2
// 17`.
std::string to_text(const RingMap& map);
// The inverse of to_text(). Throws Error(server, usage) with the line that does not parse.
RingMap parse_map(std::string_view text);

// Changes the holders so that each range gets `replicas` copies besides the master's (fewer if
// there are fewer servers), masters are spread evenly (once all copies are made, the servers'
// numbers of masters differ by at most one), and leaving servers lose their ranges as soon as other
// servers have them. The result depends only on the arguments. `servers` are the servers to use,
// without `leaving`. Copies on servers that are in neither set count as lost. Sets Joiner::since of
// new joiners to map.generation + 1. Returns whether anything changed; the caller then increments
// the generation.
bool plan_ranges(RingMap& map, const std::set<std::string>& servers,
                 const std::set<std::string>& leaving, int replicas);
// Gives all ranges their first holders: consecutive ranges to each server. There must be more
// `servers` than `replicas`.
void assign_ranges(RingMap& map, const std::set<std::string>& servers, int replicas);
// Makes a joiner whose copy is whole a holder: the master if `servers` already hold all copies,
// otherwise the last holder. plan_ranges() then removes surplus holders.
void complete_copy(RingMap& map, uint32_t range, const std::string& server,
                   const std::set<std::string>& servers, int replicas);

}  // namespace troika::server
