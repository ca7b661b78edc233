// The ordered actions of every pipeline rank in one optimizer step.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

enum class ActionKind {
  forward,
  backward,         // both parts
  backward_input,   // the gradient with respect to the stage's input
  backward_weight,  // the gradients of the stage's parameters
  send_activation,  // sends the output to the next stage
  receive_activation,
  send_gradient,  // sends the input's gradient to the previous stage
  receive_gradient,
  gather,  // all-gathers sharded parameters
  reduce,  // reduces gradients over replicas
  step     // optimizer step
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;         // the number of the stage in the model; a rank may hold several stages
  int micro_batch = -1;  // -1 for gather, reduce and step, which are not for one micro-batch
  // The stage at the other end of a message that skips stages; -1: the neighbouring stage.
  int peer = -1;
  // Whether the action starts together with the rank's next action: a forward pass with a backward
  // pass, whose operators may interleave on the device, or with another forward pass of its stage
  // (pairs.h); or messages of one batch (comm::Group::batch()).
  bool joined = false;

  bool operator==(const Action&) const = default;
};

// Returns whether the kind is F, B, I or W, which compute on the device.
bool is_pass(ActionKind kind);
bool is_message(ActionKind kind);
// Returns the stage to which a message goes or from which it comes.
int peer_stage(const Action& message);
// Returns the action at the other end of a message.
Action partner_of(const Action& message);
// Returns the text form: "1SEND_F3".
std::string text_of(const Action& action);
// Returns a text for errors: "1SEND_F3 (activations sent, stage 1, micro-batch 3)".
std::string describe(const Action& action);

// Text form: one line per rank of the pipeline axis, with its actions in order, in the notation of
// PyTorch's torch.distributed.pipelining: stage, kind, micro-batch.
//
//   0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE 0STEP
//   1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE 1STEP
//
// The kinds are F, B, I (backward_input), W (backward_weight), SEND_F, RECV_F, SEND_B, RECV_B,
// GATHER, REDUCE and STEP. `0SEND_F1>4` and `4RECV_F1<0` are the two ends of a message that skips
// stages, `(0F3;7B1)OVERLAP_F_B` are passes that start together, and `(0SEND_F1;0RECV_B0)` is a
// batch of messages. Two forward passes that start together, `(0F0;0F1)OVERLAP_F_F`, are written
// but not read: a plan has them by an option. Commas count as blanks. Lines that begin with # are
// ignored.
struct Schedule {
  std::vector<std::vector<Action>> ranks;

  // Throws Error(usage) for an invalid text, naming the line and the word; `name` is the text's
  // name, for errors.
  static Schedule parse(std::string_view text, std::string_view name = "a schedule");
  std::string text() const;

  // Checks that the schedule is complete: every stage from 0 to the last is on one rank and runs
  // each micro-batch from 0 to the last forward once; either all of them run backward once (B, or I
  // and W) or none does; every action comes after its dependencies, with messages between ranks
  // where a dependency is on another rank; in training each stage steps once, and only steps follow
  // on its rank.
  //
  // Checks that the schedule is free of deadlock if sends are unbuffered: a send ends only when its
  // receiver has reached the receive, and a receive ends only when its message has arrived.
  // Messages of a batch start together, and the next action waits for all of them. Then there is no
  // deadlock with buffered sends either. Throws Error(usage) naming ranks and actions.
  void verify() const;

  bool operator==(const Schedule&) const = default;
};

// Returns the schedule of a model with a single stage: each micro-batch runs forward and then
// backward, so the activations of only one micro-batch are in memory at a time. The reduction and
// the optimizer step follow. With `together` above 1, the forward passes of so many micro-batches
// run before their backward passes.
Schedule one_stage(int micro_batches, int together = 1);

}  // namespace troika::layout
