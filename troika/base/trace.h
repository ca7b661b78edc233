// Traces: spans and instants of one rank on named tracks, recorded by a measurement or a simulator,
// and their file format.
//
// The file is a Chrome trace (Trace Event Format, "JSON Object Format"), which Perfetto opens. Each
// rank is a process and each track is a thread; times are in microseconds. A flow arrow connects a
// bucket's instant to its span.
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
  // Names of up to 15 characters need no heap allocation.
  std::string track;
  std::string name;
  Clock::time_point start;
  std::optional<Clock::time_point> end;  // none for an instant
  int64_t step = -1;                     // -1: outside of any step
  int64_t bucket = -1;                   // index of the gradient bucket; -1: none
  int64_t bytes = -1;                    // -1: not applicable
};

// Records events from any thread; adding an event takes well below a microsecond. Spans of one
// track must be disjoint or nested. Code that supports tracing takes a Trace*, which may be null.
class Trace {
 public:
  // Keeps events from before the first step through step `steps` - 1 and drops later ones. 500
  // steps of a model with ten buckets take 1.5 MB.
  explicit Trace(int64_t steps = 500) : steps_(steps) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Assigns later events to this step, counted from 0. Events of steps beyond the limit are
  // dropped.
  void begin_step(int64_t step);
  // Adds an event. Sets event.step to the current step if it is -1 and a step has begun.
  void add(TraceEvent event);

  int64_t steps() const { return steps_; }
  std::vector<TraceEvent> events() const;

 private:
  const int64_t steps_;
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  int64_t step_ = -1;
};

// Records a span from its construction to the end of the scope. `trace` may be null.
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

// One exchange to compare a rank's clock with rank 0's. This rank asked at `sent`, rank 0's clock
// showed `there`, and the answer arrived at `received`.
struct ClockExchange {
  Clock::time_point sent;
  Clock::time_point there;
  Clock::time_point received;
};

// `offset`, added to this rank's clock at time `at`, gives rank 0's time within +- `error`.
struct ClockOffset {
  Clock::time_point at;
  Clock::duration offset{0};
  Clock::duration error{0};
};

// Estimates the offset from the exchange with the shortest round trip. The error is half of that
// round trip (Cristian, Distributed Computing 1989, section 4). `exchanges` must not be empty.
ClockOffset clock_offset(const std::vector<ClockExchange>& exchanges);

// Converts this rank's time to rank 0's. Interpolates linearly between two measured offsets, which
// corrects clock drift; outside of them, uses the nearer offset.
class AlignedClock {
 public:
  AlignedClock(ClockOffset first, ClockOffset last) : first_(first), last_(last) {}

  Clock::time_point operator()(Clock::time_point here) const;
  // The error bound between the two measurements, if the clocks drift at a constant rate.
  Clock::duration error() const { return std::max(first_.error, last_.error); }

 private:
  ClockOffset first_;
  ClockOffset last_;
};

// One rank's part of a trace file.
struct RankTrace {
  int rank = 0;
  std::string name;  // the process name in the viewer, e.g. "rank 3 on node7"
  std::vector<TraceEvent> events;
};

// Formats the events as comma-separated elements of "traceEvents", in microseconds since `origin`,
// a time on rank 0's clock.
std::string trace_elements(const RankTrace& rank, const AlignedClock& clock,
                           Clock::time_point origin);

// Builds the whole file from the trace_elements() of each rank. `clock_errors` has one entry per
// rank.
std::string trace_file(const std::vector<std::string>& elements,
                       const std::vector<Clock::duration>& clock_errors, int64_t steps);

}  // namespace troika
