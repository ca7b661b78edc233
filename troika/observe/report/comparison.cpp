#include "troika/observe/report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "troika/observe/report/html.h"
#include "troika/observe/report/plots.h"

namespace troika::observe::report {

namespace {

// The names of spans that are compared, in their order in a step.
constexpr std::array<std::string_view, 5> kCompared{"forward", "backward", "finish_backward",
                                                    "optimizer", "step"};
constexpr size_t kSimulatedLanes = 8;

}  // namespace

std::map<std::string, double> mean_phases(const TraceRecord& trace) {
  int64_t first = -1, last = -1;
  for (const auto& rank : trace.ranks) {
    for (const auto& span : rank.spans) {
      if (span.step < 0) continue;
      first = first < 0 ? span.step : std::min(first, span.step);
      last = std::max(last, span.step);
    }
  }
  if (last < 0) return {};
  if (last > first) ++first;
  const double milliseconds =
      1e-3 / (static_cast<double>(last - first + 1) * static_cast<double>(trace.ranks.size()));
  std::map<std::string, double> means;
  for (const auto& rank : trace.ranks) {
    for (const auto& span : rank.spans) {
      if (span.step < first || std::ranges::count(kCompared, span.name) == 0) continue;
      means[span.name] += (span.end - span.start) * milliseconds;
    }
  }
  return means;
}

std::string comparison(const RunRecord& run) {
  if (!run.simulated) return {};
  const auto& trace = *run.simulated;
  const auto simulated = mean_phases(trace);
  const auto measured = run.trace ? mean_phases(*run.trace) : std::map<std::string, double>{};
  const auto cell = [](const std::map<std::string, double>& means, const std::string& name) {
    const auto found = means.find(name);
    return found == means.end() ? std::string("–") : number(found->second);
  };
  std::vector<Cells> rows;
  for (const auto name : kCompared) {
    const std::string key(name);
    const bool has_both = simulated.contains(key) && measured.contains(key);
    const double ratio = has_both ? simulated.at(key) / measured.at(key) - 1 : 0;
    rows.push_back(
        {spaced(name), cell(simulated, key), cell(measured, key), has_both ? percent(ratio) : "–"});
  }
  const size_t lanes = std::min(trace.ranks.size(), kSimulatedLanes);
  return section("The simulated run",
                 paragraph(fmt::format("A step of the simulation, on {} of {} ranks:", lanes,
                                       trace.ranks.size())) +
                     step_plot(trace, typical_step(trace), lanes) +
                     table("Simulated and measured, ms a step: means over ranks, and over steps "
                           "after the first",
                           {"phase", "simulated", "measured", "difference"}, rows));
}

}  // namespace troika::observe::report
