#include "troika/plan/simulation/ordered_blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/layout/plan_places.h"
#include "troika/plan/errors/refuse.h"

namespace troika::plan {

OrderedBlocks::OrderedBlocks(const layout::Profile& profile) {
  const auto order = profile.topological_order();
  std::vector<size_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  const auto readers = profile.readers();
  for (const size_t index : order) {
    blocks_.push_back(profile.blocks[index]);
    auto& last = last_reader_.emplace_back(place[index]);
    for (const size_t reader : readers[index]) last = std::max(last, place[reader]);
  }
}

layout::StageEnds OrderedBlocks::cut(const std::string& text, int stages,
                                     const std::string& place) const {
  std::vector<std::string> names;
  std::vector<double> seconds;
  for (const auto& block : blocks_) {
    names.push_back(block.name);
    seconds.push_back(block.seconds());
  }
  if (text.empty()) return layout::balanced_cut(seconds, stages);
  auto ends = layout::parse_cut(text, names, place);
  if (ends.size() == static_cast<size_t>(stages)) return ends;
  refuse("stages.cut of the plan" + place, fmt::format("{} stages", ends.size()),
         fmt::format("{}, as its schedule has", stages));
}

double OrderedBlocks::crossing(size_t end) const {
  double bytes = 0;
  for (size_t i = 0; i < end; ++i) {
    if (last_reader_[i] >= end) bytes += blocks_[i].output_bytes;
  }
  return bytes;
}

}  // namespace troika::plan
