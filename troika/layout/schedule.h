// The ordered actions of every rank of a pipeline in one optimizer step, as data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

enum class ActionKind {
  forward,
  backward,         // both parts of it
  backward_input,   // the gradient with respect to the stage's input
  backward_weight,  // the gradients of its parameters
  send_activation,  // the output, to the next stage
  receive_activation,
  send_gradient,  // of the input, to the stage before
  receive_gradient,
  gather,  // parameters that replicas share out
  reduce,  // gradients over replicas
  step     // of the optimizer
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;         // a part of the model, in its order; a rank may hold several
  int micro_batch = -1;  // -1 for gather, reduce and step, which are not of one

  bool operator==(const Action&) const = default;
};

// Text form: a line for each rank of the pipeline axis, of actions in their order as PyTorch's
// torch.distributed.pipelining writes them, with the stage before the kind and the micro-batch
// behind it:
//
//   0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE 0STEP
//   1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE 1STEP
//
// The kinds are F, B, I (backward_input), W (backward_weight), SEND_F, RECV_F, SEND_B, RECV_B,
// GATHER, REDUCE and STEP.
struct Schedule {
  std::vector<std::vector<Action>> ranks;

  // Throws Error(usage) for a text of another form, naming the rank and the word.
  static Schedule parse(std::string_view text);
  std::string text() const;

  // Throws Error(usage) unless every stage from 0 to the last is on one rank, runs each micro-batch
  // forward once, and all of them backward once (B, or I and W) or none; unless every action comes
  // after those that it needs, with messages between ranks where these are on another; and where
  // ranks would wait for each other for ever, if a send waits for its receive.
  void verify() const;

  bool operator==(const Schedule&) const = default;
};

// A step of a model that is one stage: each micro-batch forward and backward, in turns, so that the
// activations of one are in memory at a time; then the reduction and the optimizer.
Schedule one_stage(int micro_batches);

}  // namespace troika::layout
