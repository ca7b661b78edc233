// A flight record, parsed for a report.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troika::comm {

// One rank's record of one group, as Recorder::to_json wrote it. Times are seconds of that host's
// system clock.
struct FlightRecord {
  struct Call {
    int64_t sequence = 0;
    int64_t count = -1;
    std::string operation, type, label, site, state;
    std::optional<double> started, ended;

    // The recorded part of a call that must be equal on all ranks.
    auto fingerprint() const { return std::tie(operation, type, count); }
    // "all_reduce #5 'loss' (trainer.cpp:37)"
    std::string describe() const {
      return operation + " #" + std::to_string(sequence) +
             (label.empty() ? "" : " '" + label + "'") + (site.empty() ? "" : " (" + site + ")");
    }
    // The same followed by " of Float x 8".
    std::string describe_with_data() const {
      if (type.empty()) return describe();
      return describe() + " of " + type + (count < 0 ? "" : " x " + std::to_string(count));
    }
  };
  // A message that a rank waited for.
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
  // The state of another rank as it answered this rank's question.
  struct Answer {
    int64_t sequence = -1;
    bool finished = true;
    bool left = false;
    std::string call;

    auto operator<=>(const Answer&) const = default;  // a later state is greater
  };

  std::string file, group, backend, cause, host;
  int rank = 0;
  int size = 0;
  std::vector<int> world_ranks;     // of each rank; empty if the record lacks them
  std::vector<std::string> places;  // of each rank: "data 0, tensor 1"; empty without a mesh
  double now = 0;                   // when the record was written
  std::vector<std::optional<Answer>> statuses;
  std::map<int64_t, Call> calls;  // by sequence
  std::vector<Message> waits;     // messages that did not arrive, in the order they began

  // The latest started call; null if there is none.
  const Call* last() const;
  // The sequence number of the first call that is not finished.
  int64_t next() const;
  // The earliest end of a failed call or message. If there is a cause but no failed call or
  // message, the time when the record was written.
  std::optional<double> failed_at() const;
};

// Parses what Recorder::to_json wrote; `file` is its name. Throws nlohmann::json::exception if the
// text is not a record, std::out_of_range if the record contradicts itself.
FlightRecord parse_flight_record(const std::string& file, const std::string& text);

}  // namespace troika::comm
