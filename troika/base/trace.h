// Traces: spans and instants of one rank on named tracks, as a measurement or a
// simulator made them, and their file format.
//
// The file is a Chrome trace (Trace Event Format, "JSON Object Format"), which Perfetto opens: a
// process per rank, a thread per track, times in microseconds. A bucket's instant is joined to its
// span by a flow arrow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"

namespace troika {

struct TraceEvent {
  // Up to 15 characters need no memory of their own.
  std::string track;
  std::string name;
  Clock::time_point start;
  std::optional<Clock::time_point> end;  // none: an instant
  int64_t step = -1;                     // -1: of none
  int64_t bucket = -1;                   // of gradients; -1: of none
  int64_t bytes = -1;                    // -1: no matter
};

// Takes events from any thread; to add one takes well below a microsecond. Spans of one track must
// lie one after another or within each other. Code that can be traced takes a Trace*, nullptr for
// none.
class Trace {
 public:
  // Keeps the events of the first `steps` steps and what lies before and between them: 500 steps of
  // a model with ten buckets take 1.5 MB.
  explicit Trace(int64_t steps = 500) : steps_(steps) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Events from now on are of this step, counted from 0; or are dropped, where it lies beyond.
  void begin_step(int64_t step);
  // Sets event.step where it is -1 and a step has begun.
  void add(TraceEvent event);

  int64_t steps() const { return steps_; }
  std::vector<TraceEvent> events() const;

 private:
  const int64_t steps_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  int64_t step_ = -1;
};

// A span from here to the end of the scope.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, const char* track, const char* name, int64_t bucket = -1,
            int64_t bytes = -1);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  const char* const track_;
  const char* const name_;
  const int64_t bucket_;
  const int64_t bytes_;
  const Clock::time_point start_;
};

// How a rank's clock lies to rank 0's, from one exchange: this rank asked at `sent`, rank 0's clock
// showed `there`, the answer was here at `received`.
struct ClockExchange {
  Clock::time_point sent;
  Clock::time_point there;
  Clock::time_point received;
};

// A time to add to this rank's clock at the instant `at`, within +- error.
struct ClockOffset {
  Clock::time_point at;
  Clock::duration offset{0};
  Clock::duration error{0};
};

// From the exchange with the least round trip; the error is half of it (Cristian, Distributed
// Computing 1989, section 4). `exchanges` must not be empty.
ClockOffset clock_offset(const std::vector<ClockExchange>& exchanges);

// This rank's clock as rank 0's: between two measured offsets their line, which takes out the drift
// of the clocks; before and behind them the nearer one.
class AlignedClock {
 public:
  AlignedClock(ClockOffset first, ClockOffset last) : first_(first), last_(last) {}

  Clock::time_point operator()(Clock::time_point here) const;
  // The bound for times between the two measurements, if the clocks drift evenly.
  Clock::duration error() const { return std::max(first_.error, last_.error); }

 private:
  ClockOffset first_;
  ClockOffset last_;
};

// One rank's part of a trace file.
struct RankTrace {
  int rank = 0;
  std::string name;  // of its lane, e.g. "rank 3 on node7"
  std::vector<TraceEvent> events;
};

// The events as the elements of "traceEvents", comma-separated, in microseconds since `origin`,
// which is a time of rank 0's.
std::string trace_elements(const RankTrace& rank, const AlignedClock& clock,
                           Clock::time_point origin);

// The whole file of what trace_elements() gave for each rank. `clock_errors` are the ranks'.
std::string trace_file(const std::vector<std::string>& elements,
                       const std::vector<Clock::duration>& clock_errors, int64_t steps);

}  // namespace troika
