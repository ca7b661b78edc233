// A flight record as a report reads it.
#pragma once

#include <compare>
#include <cstdint>
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
  // A message that was waited for.
  struct Message {
    int64_t number = 0;
    int64_t count = 0;
    int peer = 0;
    int tag = 0;
    bool on_edge = false;
    std::string direction, type, label, site, state;
    double awaited = 0;
    std::optional<double> ended;

    // "receive #3 from rank 1, tag 0 'activations' (stage.cpp:37) of Float x 8"
    std::string describe() const;
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
  std::vector<int> world_ranks;     // of each rank; empty in records that do not say
  std::vector<std::string> places;  // of each rank: "data 0, tensor 1"; empty without a mesh
  double now = 0;                   // when it was written
  std::vector<std::optional<Answer>> standings;
  std::map<int64_t, Call> calls;  // by sequence
  std::vector<Message> waits;     // the messages that did not come, in the order they began

  // The latest call that was started; null when there is none.
  const Call* last() const;
  // The number of the first call that is not finished.
  int64_t next() const;
  // The earliest end of a failed call or message, or, with a cause but none of them, when it was
  // written.
  std::optional<double> failed_at() const;
};

// Reads what Recorder::to_json wrote; `file` is its name. Throws nlohmann::json::exception where it
// is none, and std::out_of_range where it contradicts itself.
FlightRecord parse_flight_record(const std::string& file, const std::string& text);

}  // namespace troika::comm
