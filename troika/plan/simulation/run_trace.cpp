#include "troika/plan/simulation/run_trace.h"

#include <fmt/format.h>

#include <chrono>

#include "troika/base/trace.h"
#include "troika/plan/errors/refuse.h"

namespace troika::plan {

std::string trace_of(const RunSimulation& simulation) {
  const Clock::time_point origin{};
  constexpr double kMostSeconds = 9e9;  // 2^63 nanoseconds are 9.2e9 s
  const auto at = [&](double seconds) {
    if (seconds > kMostSeconds) {
      refuse("seconds of a trace", fmt::format("{:.9g}", seconds),
             fmt::format("at most {:g}", kMostSeconds));
    }
    return origin + std::chrono::round<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  std::vector<RankTrace> ranks;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    ranks.push_back({static_cast<int>(rank), fmt::format("rank {}, simulated", rank), {}});
  }
  for (const auto& span : simulation.spans) {
    TraceEvent event{.track = span.track,
                     .name = span.name,
                     .start = at(span.begin),
                     .end = {},
                     .step = span.step,
                     .bucket = span.bucket,
                     .bytes = static_cast<int64_t>(span.bytes)};
    if (span.end) event.end = at(*span.end);
    ranks[static_cast<size_t>(span.rank)].events.push_back(std::move(event));
  }
  const AlignedClock clock({.at = origin}, {.at = origin});
  std::vector<std::string> elements;
  for (const auto& rank : ranks) elements.push_back(trace_elements(rank, clock, origin));
  return trace_file(elements, std::vector<Clock::duration>(elements.size()),
                    static_cast<int64_t>(simulation.step_seconds.size()));
}

}  // namespace troika::plan
