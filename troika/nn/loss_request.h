// How a task asks a model of many classes for its loss, so that the model need not give logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

namespace troika::nn {

class Model;

struct LossRequest {
  enum class Kind {
    mean,  // over the targets that count
    each,  // of every target, and the predicted class; without gradients
  };

  const Model* model = nullptr;  // whose last block is asked
  at::Tensor targets;            // [...] of Long
  int64_t ignored = -100;        // a target that does not count
  Kind kind = Kind::mean;

  // The answer. The last block of the model gave the loss in place of logits: one element, or
  // [targets] for Kind::each.
  bool is_answered = false;
  at::Tensor predictions = {};  // [targets] of Long for Kind::each
};

// The request on a thread.
struct LossState {
  std::shared_ptr<LossRequest> request;  // null: none
  bool is_open = false;                  // the block that may answer is running

  // This thread's.
  static LossState& current();
};

// Replaces this thread's state while it lives.
class LossStateGuard {
 public:
  explicit LossStateGuard(LossState state)
      : before_(std::exchange(LossState::current(), std::move(state))) {}
  ~LossStateGuard() { LossState::current() = std::move(before_); }
  LossStateGuard(const LossStateGuard&) = delete;
  LossStateGuard& operator=(const LossStateGuard&) = delete;

 private:
  LossState before_;
};

// Opens this thread's request while it lives for a block of `model`, and closes it for a model
// inside of that.
class LossOfBlock {
 public:
  LossOfBlock(const Model* model, bool is_last);
  ~LossOfBlock() { LossState::current().is_open = before_; }
  LossOfBlock(const LossOfBlock&) = delete;
  LossOfBlock& operator=(const LossOfBlock&) = delete;

 private:
  const bool before_;
};

// The output layer of a model, called at the end of its last block: logits = hidden weight^T,
// [..., classes] for a `hidden` of [..., width] and a `weight` of [classes, width]. Where the loss
// of that model is asked for, gives the loss instead, by linear_cross_entropy(), which needs memory
// for a part of the logits alone.
at::Tensor output_layer(const at::Tensor& hidden, const at::Tensor& weight);

}  // namespace troika::nn
