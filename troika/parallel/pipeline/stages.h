// The stages of a model: which blocks each one runs, and which tensors it takes and gives.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/layout/schedules/complete.h"
#include "troika/layout/stage_cut.h"
#include "troika/nn/flow.h"
#include "troika/nn/model.h"

namespace troika::parallel {

// A tensor that a stage takes from the batch or from an earlier stage.
struct StageInput {
  static constexpr int kBatch = -1;

  nn::Slot slot = 0;
  int from = kBatch;  // the stage that gives it, or kBatch
  // Whether a trained parameter affects it, so that its gradient is sent back (if it is a
  // floating-point tensor).
  bool is_trained = false;

  bool operator==(const StageInput&) const = default;
};

struct StageOfModel {
  size_t begin = 0, end = 0;      // its blocks; may be none
  std::vector<StageInput> takes;  // Wiring::into(begin, end)
  nn::Slots gives;                // Wiring::out_of(begin, end)

  bool has_blocks() const { return begin < end; }
};

// Tensors go straight from the stage that gives them to each stage that takes them. The last stage
// has the model's outputs: if it has no blocks, it takes them from the stage that gives them.
class StagesOfModel {
 public:
  // `ends.back()` must be the number of blocks. A parameter that does not require a gradient now
  // counts as frozen. Throws the errors of Model::verify(), and Error(usage) for a model without
  // blocks.
  StagesOfModel(const nn::Model& model, const layout::StageEnds& ends);

  size_t size() const { return stages_.size(); }
  const StageOfModel& operator[](int stage) const { return stages_[static_cast<size_t>(stage)]; }
  // Returns the inputs of stage `to` that stage `from` gives, in the order of its `takes`: the
  // tensors of one message.
  std::vector<StageInput> message(int from, int to) const;
  // Returns the pairs of stages that are not neighbours but exchange messages.
  std::vector<layout::SkipEdge> skips() const;

 private:
  std::vector<StageOfModel> stages_;
};

// Whether the backward pass of a stage may be computed in two parts. A stage without inputs that
// have gradients computes all of its gradients at once. So does the stage of an output layer, whose
// loss goes backward only once (nn/linear_cross_entropy.h), and a model whose blocks are
// recomputed, which would be computed for each part.
bool can_split_backward(const nn::Model& model, const StageOfModel& stage);

}  // namespace troika::parallel
