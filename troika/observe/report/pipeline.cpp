#include "troika/observe/report/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "troika/observe/report/html.h"
#include "troika/observe/report/plots.h"

namespace troika::observe::report {

namespace {

constexpr size_t kDrawnRanks = 16;

}  // namespace

std::string pipeline(const RunRecord& run) {
  if (!run.summary || run.summary->bubble.empty()) return {};
  const auto& bubble = run.summary->bubble;
  std::vector<Cells> rows;
  for (size_t r = 0; r < bubble.size(); ++r) {
    rows.push_back({fmt::format("rank {}", r), percent(bubble[r])});
  }
  std::string html = paragraph(
      "The bubble of a rank is the share of the time of a step's passes in which it runs none: it "
      "waits for other stages. Medians over all steps.");
  if (run.trace) {
    const size_t lanes = std::min(run.trace->ranks.size(), kDrawnRanks);
    html += pass_plot(*run.trace, typical_step(*run.trace), lanes);
  }
  return section("Bubbles of the pipeline",
                 html + table("Bubble of each rank", {"rank", "bubble"}, rows));
}

}  // namespace troika::observe::report
