// Says from the flight records of a failed job which rank was where.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troika::comm {

// One rank's record of one group as Recorder::to_json wrote it; times are seconds of that host's
// system clock.
struct FlightRecord {
  struct Call {
    int64_t sequence = 0;
    int64_t count = -1;
    std::string operation, type, label, site, state;
    std::optional<double> started, ended;

    // The part of a call that must be alike on all ranks, as far as it is recorded.
    auto print() const { return std::tie(operation, type, count); }
    // "all_reduce #5 'loss' (trainer.cpp:37)"
    std::string describe() const {
      return operation + " #" + std::to_string(sequence) +
             (label.empty() ? "" : " '" + label + "'") + (site.empty() ? "" : " (" + site + ")");
    }
    // The same " of Float x 8".
    std::string describe_with_data() const {
      if (type.empty()) return describe();
      return describe() + " of " + type + (count < 0 ? "" : " x " + std::to_string(count));
    }
  };
  // Another rank's account of itself when this one asked.
  struct Answer {
    int64_t sequence = -1;
    bool finished = true;
    bool left = false;
    std::string call;

    auto operator<=>(const Answer&) const = default;  // later ones are greater
  };

  std::string file, group, backend, cause, host;
  int rank = 0;
  int size = 0;
  double now = 0;  // when it was written
  std::vector<std::optional<Answer>> standings;
  std::map<int64_t, Call> calls;  // by sequence

  // The latest call that was started; null when there is none.
  const Call* last() const {
    const Call* latest = nullptr;
    for (const auto& [sequence, call] : calls) {
      if (call.started) latest = &call;
    }
    return latest;
  }
  // The number of the first call that is not finished.
  int64_t next() const {
    for (const auto& [sequence, call] : calls) {
      if (call.state != "finished") return sequence;
    }
    return calls.empty() ? 0 : calls.rbegin()->first + 1;
  }
  // Its earliest failed call's end, or, with a cause but no such call, when it was written.
  std::optional<double> failed_at() const {
    std::optional<double> first;
    for (const auto& [sequence, call] : calls) {
      if (call.state == "failed" && call.ended && (!first || *call.ended < *first)) {
        first = call.ended;
      }
    }
    return first || cause.empty() ? first : now;
  }
};

// Reads every *.json in `folder`, aligns the calls of the ranks by their numbers, and reports on
// the group that failed first:
// - a paragraph, one sentence a line: the first call that not all ranks finished, who was in it and
//   for how long, who never came and what was seen of them last, who called something else or came
//   much later than the others, and the first cause in time;
// - a table of all ranks, with the seconds from the last call's start (unfinished or failed) or end
//   (finished) until the rank wrote its record;
// - a line for each other group, and for each file that could not be used.
// A rank without a record counts with what it last told the others. Times on different hosts are as
// comparable as the hosts' clocks.
//
// Throws Error(usage) when there is no such folder, when no file in it is a flight record, and when
// the records cannot be of one run.
std::string flight_report(const std::filesystem::path& folder);

}  // namespace troika::comm
