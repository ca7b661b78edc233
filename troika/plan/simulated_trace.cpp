#include "troika/plan/simulated_trace.h"

#include <fmt/format.h>

#include <chrono>

#include "troika/base/trace.h"

namespace troika::plan {

std::string trace_of(const Simulation& simulation, double unit) {
  const Clock::time_point origin{};
  const auto at = [&](double time) {
    return origin + std::chrono::round<Clock::duration>(std::chrono::duration<double>(time * unit));
  };
  const AlignedClock clock({.at = origin}, {.at = origin});
  std::vector<std::string> elements;
  for (size_t r = 0; r < simulation.ranks.size(); ++r) {
    RankTrace rank{static_cast<int>(r), fmt::format("rank {}, simulated", r), {}};
    for (const auto& pass : simulation.ranks[r]) {
      rank.events.push_back({.track = "passes",
                             .name = text_of(pass.action),
                             .start = at(pass.begin),
                             .end = at(pass.end),
                             .step = 0});
    }
    elements.push_back(trace_elements(rank, clock, origin));
  }
  return trace_file(elements, std::vector<Clock::duration>(elements.size()), 1);
}

}  // namespace troika::plan
