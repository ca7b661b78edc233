// Reads the trace file of a training run and summarizes its steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace troika::observe::report {

// Times are in microseconds.
struct SpanRecord {
  std::string track;
  std::string name;
  double start = 0;
  double end = 0;
  int64_t step = -1;
  int64_t bucket = -1;
};

struct RankTimeline {
  std::string name;  // for example "rank 0 on host"
  std::vector<SpanRecord> spans;
};

struct TraceRecord {
  std::vector<RankTimeline> ranks;
  std::vector<double> clock_errors;  // microseconds; one for each rank
};

// Throws Error(usage) naming the file and the error in it.
TraceRecord read_trace(const std::filesystem::path& path);

// The milliseconds per step that one rank's communication took, and the part of them hidden behind
// computation. Means over all steps except the first, in which buckets have another order (the
// first counts if it is the only step).
struct Overlap {
  double communication = 0;
  double hidden = 0;
};
// Returns that of gradient buckets, which the backward pass hides.
Overlap bucket_overlap(const RankTimeline& rank);
// Returns that of the sums of a tensor axis, which the weight gradients of the same micro-batch
// hide and, in forward passes, the other micro-batch.
Overlap tensor_overlap(const RankTimeline& rank);

// Returns the step of median length on rank 0, ignoring the first step if there are others; -1 if
// there are no steps.
int64_t typical_step(const TraceRecord& trace);

}  // namespace troika::observe::report
