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
  // The stage at the other end of a message that skips stages; -1 where that is the neighbour.
  int peer = -1;
  // Begins together with the rank's next action: a forward pass beside a backward pass, whose
  // operators may take turns on the device, or messages that are one batch (comm::Group::batch()).
  bool joined = false;

  bool operator==(const Action&) const = default;
};

// Whether it is F, B, I or W: what a device computes.
bool is_pass(ActionKind kind);
bool is_message(ActionKind kind);
// The stage that a message goes to, or comes from.
int peer_stage(const Action& message);
// The action at the other end of a message.
Action partner_of(const Action& message);
// As the text form has it: "1SEND_F3".
std::string text_of(const Action& action);
// For errors: "1SEND_F3 (activations sent, stage 1, micro-batch 3)".
std::string describe(const Action& action);

// Text form: a line for each rank of the pipeline axis, of actions in their order as PyTorch's
// torch.distributed.pipelining writes them, with the stage before the kind and the micro-batch
// behind it:
//
//   0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE 0STEP
//   1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE 1STEP
//
// The kinds are F, B, I (backward_input), W (backward_weight), SEND_F, RECV_F, SEND_B, RECV_B,
// GATHER, REDUCE and STEP. `0SEND_F1>4` and `4RECV_F1<0` are the ends of a message that skips
// stages, `(0F3;7B1)OVERLAP_F_B` are passes that begin together, and `(0SEND_F1;0RECV_B0)` is a
// batch of messages. Commas count as blanks, and lines that begin with # as empty.
struct Schedule {
  std::vector<std::vector<Action>> ranks;

  // Throws Error(usage) for a text of another form, naming the line and the word; `name` is the
  // text's, for errors.
  static Schedule parse(std::string_view text, std::string_view name = "a schedule");
  std::string text() const;

  // Proves the schedule complete: every stage from 0 to the last is on one rank and runs each
  // micro-batch from 0 to the last forward once, and all of them backward once (B, or I and W) or
  // none; every action comes after those that it needs, with messages between ranks where these are
  // on another; where it trains, each stage steps once, and nothing but steps follows on its rank.
  // Proves it free of deadlock where a send ends only once its receiver has come to the receive,
  // and a receive only with its message; messages of a batch begin together, and what follows a
  // batch waits for all of them. Weaker sends, as those that a back end copies, cannot stand still
  // then either. Throws Error(usage) naming ranks and actions.
  void verify() const;

  bool operator==(const Schedule&) const = default;
};

// A step of a model that is one stage: each micro-batch forward and backward, in turns, so that the
// activations of one are in memory at a time; then the reduction and the optimizer.
Schedule one_stage(int micro_batches);

}  // namespace troika::layout
