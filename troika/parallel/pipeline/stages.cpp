#include "troika/parallel/pipeline/stages.h"

#include <algorithm>
#include <set>
#include <string>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

// Returns for each block whether a trained parameter of it or of an earlier block affects the
// tensors it gives.
std::vector<bool> trained_blocks(const nn::Model& model) {
  std::set<std::string> trained;
  for (const auto& [name, parameter] : nn::trained_parameters(model)) trained.insert(name);
  const auto& blocks = model.blocks();
  const auto& wiring = model.wiring();
  std::vector<bool> result(blocks.size(), false);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto owned = model.owned_state(blocks[i]);
    result[i] =
        std::ranges::any_of(owned, [&](const auto& one) { return trained.contains(one.first); }) ||
        std::ranges::any_of(blocks[i].borrows,
                            [&](const auto& name) { return trained.contains(name); }) ||
        std::ranges::any_of(wiring.taken_by(i), [&](nn::Slot slot) {
          const auto giver = wiring.giver_before(slot, i);
          return giver && result[*giver];
        });
  }
  return result;
}

}  // namespace

StagesOfModel::StagesOfModel(const nn::Model& model, const layout::StageEnds& ends) {
  const size_t blocks = model.blocks().size();
  if (blocks == 0) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a model without blocks cannot be cut into stages",
                 .hint = "nn::from_sequential() and nn::Model::add_block() make blocks"});
  }
  TROIKA_CHECK(!ends.empty() && ends.back() == blocks && std::ranges::is_sorted(ends),
               "stages hold all blocks in their order");
  model.verify();
  const auto& wiring = model.wiring();
  const auto trained = trained_blocks(model);
  const auto stage_of = [&](size_t block) {
    return static_cast<int>(std::ranges::upper_bound(ends, block) - ends.begin());
  };
  const auto input = [&](nn::Slot slot, size_t before) {
    const auto giver = wiring.giver_before(slot, before);
    return giver ? StageInput{slot, stage_of(*giver), trained[*giver]} : StageInput{slot};
  };
  size_t begin = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    StageOfModel stage{.begin = begin, .end = ends[s], .takes = {}, .gives = {}};
    begin = ends[s];
    if (stage.has_blocks()) {
      for (const auto slot : wiring.into(stage.begin, stage.end)) {
        stage.takes.push_back(input(slot, stage.begin));
      }
      stage.gives = wiring.out_of(stage.begin, stage.end);
    } else if (s + 1 == ends.size()) {
      for (const auto slot : wiring.given_by(blocks - 1)) {
        stage.takes.push_back(input(slot, blocks));
      }
    }
    stages_.push_back(std::move(stage));
  }
}

std::vector<StageInput> StagesOfModel::message(int from, int to) const {
  std::vector<StageInput> result;
  std::ranges::copy_if((*this)[to].takes, std::back_inserter(result),
                       [&](const StageInput& input) { return input.from == from; });
  return result;
}

std::vector<layout::SkipEdge> StagesOfModel::skips() const {
  std::vector<layout::SkipEdge> result;
  for (int to = 0; to < static_cast<int>(size()); ++to) {
    for (const auto& input : (*this)[to].takes) {
      const layout::SkipEdge skip{input.from, to};
      if (input.from < 0 || input.from + 1 == to) continue;
      if (std::ranges::find(result, skip) == result.end()) result.push_back(skip);
    }
  }
  return result;
}

bool can_split_backward(const nn::Model& model, const StageOfModel& stage) {
  const bool has_output_layer = model.has_output_layer() && stage.end == model.blocks().size();
  return !model.has_wrapper(nn::WrapperKind::recompute) && !has_output_layer &&
         std::ranges::any_of(stage.takes, &StageInput::is_trained);
}

}  // namespace troika::parallel
