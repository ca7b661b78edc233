// Splits a worker's call into requests to ranges of the ring. Internal to the room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troika/server/call.h"
#include "troika/server/push_filter.h"
#include "troika/server/ring_map.h"
#include "troika/server/worker.h"

namespace troika::server {

// Returns the index of a table. Throws Error(server, usage) with the most similar name if the map
// has no table of this name.
uint32_t table_index(const RingMap& map, std::string_view table);

// Throws Error(server, usage) if keys and values do not fit the table. `values` is null for reads.
// The message begins with `what`.
void check_call(Operation operation, const TableSpec& table, const std::string& what,
                const Keys& keys, const Values* values, const CallOptions& options);

// Returns the call's keys by range, in the order of ranges.
std::vector<KeyGroup> group_keys(const TableSpec& table, const Keys& keys, uint32_t ranges);

// Returns the request for a group, without the call. `filter` may be null. `draw` numbers the call,
// for random draws.
RangeRequest make_request(Operation operation, uint32_t index, const TableSpec& table,
                          const Keys& keys, const Values* values, const CallOptions& options,
                          const KeyGroup& group, const PushFilter* filter, uint64_t draw);

}  // namespace troika::server
