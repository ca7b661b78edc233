// Members of a group tell this to each other before they average. Internal to the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "troika/swarm/averaging.h"
#include "troika/swarm/matchmaking.h"

namespace troika::swarm {

// More than any model has.
inline constexpr uint64_t kMostNumbers = uint64_t{1} << 36;

// A member's part of a row (step_groups.h).
struct RowPart {
  size_t row = 0;            // of the grid
  std::string average = {};  // names the row's average; empty: the member has none to contribute
  double weight = 0;         // of the average
  size_t members = 0;        // of the row in this member's column; 0: there are no rows
};

struct Gathered {
  Mode mode = Mode::client;
  double bandwidth = 0;  // bytes per second; 0: unknown
  uint64_t numbers = 0;  // of its vector; 0 for auxiliary peers, which get to know it so
  RowPart row = {};
  bool is_paused = false;  // it reduces nothing, unless nobody else can

  std::string text() const;
};

// All members come to the same result, also for a text that is wrong: a client then.
Gathered gathered_from(const std::string& text);

// The parts that the members reduce of `numbers`, or, if there are none, as for an auxiliary peer,
// of the most that a member has. Members that are paused reduce only if no other can. Parts have
// whole blocks of a packing but for the last one. Averages of rows are added in the same order in
// all columns. Throws Error(swarm, usage) if no member can reduce anything.
AveragingGroup group_of(const Match& match, std::optional<size_t> numbers, size_t least_part,
                        size_t block);

// Bytes per second; infinite if no member knows its own.
double slowest_link(const Match& match);

}  // namespace troika::swarm
