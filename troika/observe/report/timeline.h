// A trace file of a training run, read back, and what it says of a run's steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace troika::observe::report {

// Times in microseconds.
struct Span {
  std::string track;
  std::string name;
  double start = 0;
  double end = 0;
  int64_t step = -1;
  int64_t bucket = -1;
};

struct RankTimeline {
  std::string name;  // "rank 0 on host"
  std::vector<Span> spans;
};

struct TraceRecord {
  std::vector<RankTimeline> ranks;
  std::vector<double> clock_errors;  // microseconds; one per rank
};

// Throws Error(usage) naming the file and what is wrong with it.
TraceRecord read_trace(const std::filesystem::path& path);

// Milliseconds that one rank's buckets took a step, and the part of them in which its backward pass
// went on; means over all steps but the first, in which buckets have another order, if there are
// others.
struct Overlap {
  double communication = 0;
  double hidden = 0;
};
Overlap overlap(const RankTimeline& rank);

// The step of median length on rank 0, without the first if there are others; -1 if there is none.
int64_t typical_step(const TraceRecord& trace);

}  // namespace troika::observe::report
