#include "troika/plan/memory/stage_bytes.h"

#include <algorithm>
#include <utility>

namespace troika::plan {

PassedBlocks keep(const layout::ProfiledBlock& block) {
  const auto& own = block.in_stage;
  const auto or_else = [](double known, double other) { return known > 0 ? known : other; };
  const double input_part = or_else(own.input_workspace_bytes, block.workspace_bytes);
  return {
      .kept = block.saved_bytes,
      .most = block.saved_bytes + block.workspace_bytes,
      .most_at_end = block.saved_bytes + or_else(own.sent_workspace_bytes, block.workspace_bytes),
      .gradients = block.parameter_bytes,
      .input_part = input_part + block.output_bytes,
      .input_part_at_end = input_part,
      .output_gradient = own.weight_output_bytes,
      .weight_gradients = own.weight_gradient_bytes,
      .weight_kept = block.saved_bytes * own.weight_saved_share,
      .weight_input = own.weight_input_bytes,
      .weight_part = own.weight_workspace_bytes};
}

PassedBlocks recompute(std::span<const layout::ProfiledBlock> blocks, double input_bytes) {
  const double again = blocks.back().in_stage.recomputed_saved_bytes;
  PassedBlocks all{.kept = input_bytes + again};
  double saved = input_bytes;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto own = keep(blocks[i]);
    // An output layer keeps all of its activations, and computes none of them again.
    const double kept = i + 1 == blocks.size() ? std::max(own.kept, again) : own.kept;
    all.most = std::max(all.most, saved + kept + own.most - own.kept);
    all.most_at_end =
        std::max(all.most_at_end,
                 saved + kept + (i + 1 == blocks.size() ? own.most_at_end : own.most) - own.kept);
    all.gradients += own.gradients;
    saved += own.kept;
  }
  return all;
}

BytesOfStages::BytesOfStages(std::vector<PassedBlocks> blocks) : blocks_(std::move(blocks)) {
  const auto add = [&](std::vector<double>& sum, auto&& value) {
    sum.push_back(0);
    for (const auto& block : blocks_) sum.push_back(sum.back() + value(block));
  };
  add(kept_, [](const PassedBlocks& block) { return block.kept; });
  add(gradients_, [](const PassedBlocks& block) { return block.gradients; });
  add(left_gradients_,
      [](const PassedBlocks& block) { return block.weight_gradients + block.output_gradient; });
  add(weight_kept_, [](const PassedBlocks& block) {
    return block.weight_kept + block.weight_input + block.output_gradient;
  });
  add(freed_, [](const PassedBlocks& block) {
    return block.weight_kept - block.weight_gradients + block.weight_input;
  });
  const auto maximum = [&](auto&& value) {
    std::vector<double> values;
    for (size_t i = 0; i < blocks_.size(); ++i) values.push_back(value(i));
    return RangeMaximum(std::move(values));
  };
  most_ = maximum([&](size_t i) { return kept_[i] + blocks_[i].most; });
  most_at_first_ =
      maximum([&](size_t i) { return kept_[i] + blocks_[i].most - gradients_[i + 1]; });
  input_part_ = maximum([&](size_t i) { return blocks_[i].input_part - left_gradients_[i + 1]; });
  weight_part_ = maximum([&](size_t i) { return blocks_[i].weight_part - freed_[i]; });
}

StageBytes BytesOfStages::of(size_t begin, size_t end, bool sends) const {
  const auto &first = blocks_[begin], &last = blocks_[end - 1];
  const double before_last = kept_[end - 1] - kept_[begin];
  StageBytes bytes{.kept = kept_[end] - kept_[begin]};
  bytes.most = before_last + (sends ? last.most_at_end : last.most);
  bytes.most_at_first = bytes.most;
  bytes.most_in_input_part = bytes.kept + last.input_part_at_end;
  bytes.weight_kept =
      weight_kept_[end] - weight_kept_[begin] - first.weight_input - last.output_gradient;
  bytes.most_in_weight_part = bytes.weight_kept + first.weight_part;
  const auto add = [](double& most, double other) { most = std::max(most, other); };
  if (end - begin > 1) {
    add(bytes.most, most_.of(begin, end - 1) - kept_[begin]);
    add(bytes.most_at_first, most_at_first_.of(begin, end - 1) - kept_[begin] + gradients_[end]);
    add(bytes.most_in_input_part,
        bytes.kept + input_part_.of(begin, end - 1) + left_gradients_[end] - last.output_gradient);
    // The first block's input is a message, which stays.
    add(bytes.most_in_weight_part,
        bytes.weight_kept + weight_part_.of(begin + 1, end) + freed_[begin] + first.weight_input);
  }
  // The first part frees nothing before its end.
  add(bytes.most_in_input_part, std::max(bytes.most, bytes.weight_kept));
  return bytes;
}

}  // namespace troika::plan
