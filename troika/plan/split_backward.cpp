#include "troika/plan/split_backward.h"

#include <algorithm>

namespace troika::plan {

SplitBackward::SplitBackward(const layout::Profile& profile, const std::vector<size_t>& order)
    : first_reader_(order.size() + 1, order.size()), output_layers_{0} {
  std::vector<size_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  const auto& blocks = profile.blocks;
  const bool tells_parameters = std::ranges::any_of(
      blocks, [](const layout::ProfiledBlock& block) { return block.parameter_bytes > 0; });
  const auto readers = profile.readers();
  std::vector<bool> has_gradient(order.size(), !tells_parameters);
  for (const size_t from : order) {
    if (blocks[from].parameter_bytes > 0) has_gradient[from] = true;
    output_layers_.push_back(output_layers_.back() + (blocks[from].has_output_layer ? 1 : 0));
    if (!has_gradient[from]) continue;
    for (const size_t to : readers[from]) {
      has_gradient[to] = true;
      for (size_t begin = place[from] + 1; begin <= place[to]; ++begin) {
        first_reader_[begin] = std::min(first_reader_[begin], place[to]);
      }
    }
  }
}

}  // namespace troika::plan
