#include "troika/plan/simulation/pass_replay.h"

#include <algorithm>

#include "troika/base/error.h"
#include "troika/plan/simulation/event_loop.h"

namespace troika::plan {

using layout::Action;
using layout::ActionKind;

namespace {

// The ranks are those of the stages, one stage after the other.
class PassReplay {
 public:
  PassReplay(const ReplayedPipeline& pipeline, const ClusterLinks& links)
      : pipeline_(pipeline), loop_(links), ends_(pipeline.stages.size(), 0) {
    for (const auto& stage : pipeline.stages) {
      first_.push_back(ranks_.size());
      for (const auto& rank : stage) {
        const size_t count = rank.passes.size();  // of any kind, so enough for each
        ranks_.push_back({.own = &rank, .outputs = std::vector<bool>(count, false)});
        ranks_.back().gradients = ranks_.back().outputs;
      }
    }
  }

  std::vector<double> ends() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) advance(rank);
    while (const auto event = loop_.next()) handle(*event);
    for (const auto& rank : ranks_) {
      TROIKA_CHECK(rank.next == rank.own->passes.size(), "all passes of a pipeline end");
    }
    return ends_;
  }

 private:
  struct State {
    const ReplayedRank* own = nullptr;
    size_t next = 0;  // index of the pass that runs or comes next
    bool computes = false;
    // By micro-batch, or by the micro-batch divided by the number of replicas that share them:
    // whether the message for its forward and for its backward pass has arrived.
    std::vector<bool> outputs = {}, gradients = {};
  };

  bool is_last(int stage) const { return static_cast<size_t>(stage) + 1 == ends_.size(); }
  size_t replicas(int stage) const { return pipeline_.stages[static_cast<size_t>(stage)].size(); }
  size_t index_of(const State& rank, int micro_batch) const {
    const auto number = static_cast<size_t>(micro_batch);
    return pipeline_.has_own_micro_batches ? number : number / replicas(rank.own->stage);
  }

  bool may_begin(const State& rank, const Action& pass) const {
    const size_t index = index_of(rank, pass.micro_batch);
    if (pass.kind == ActionKind::forward) return rank.own->stage == 0 || rank.outputs[index];
    if (pass.kind == ActionKind::backward_weight) return true;
    return is_last(rank.own->stage) || rank.gradients[index];
  }

  static double seconds(const ReplayedRank& rank, const Action& pass) {
    switch (pass.kind) {
      case ActionKind::forward:
        return pass.joined ? rank.pair : rank.forward;
      case ActionKind::backward_input:
        return rank.backward_input;
      case ActionKind::backward_weight:
        return rank.backward_weight;
      default:
        return rank.backward_input + rank.backward_weight;
    }
  }

  void advance(size_t number) {
    auto& rank = ranks_[number];
    if (rank.computes || rank.next == rank.own->passes.size()) return;
    const auto* pass = &rank.own->passes[rank.next];
    if (!may_begin(rank, *pass) || (pass->joined && !may_begin(rank, pass[1]))) return;
    rank.computes = true;
    loop_.push({.time = loop_.now() + seconds(*rank.own, *pass),
                .kind = EventKind::pass_ends,
                .who = static_cast<int>(number)});
  }

  void handle(const Event& event) {
    if (event.kind == EventKind::pass_ends) return end_pass(static_cast<size_t>(event.who));
    auto& message = messages_[event.what];
    auto& rank = ranks_[message.rank];
    (message.is_output ? rank.outputs : rank.gradients)[message.index] = true;
    unused_.push_back(event.what);
    advance(message.rank);
  }

  void end_pass(size_t number) {
    auto& rank = ranks_[number];
    rank.computes = false;
    auto& end = ends_[static_cast<size_t>(rank.own->stage)];
    end = std::max(end, loop_.now());
    while (send_output(rank, rank.own->passes[rank.next++])) continue;
    advance(number);
  }

  // Sends what a pass that has ended computed. Returns whether the next pass has ended, too.
  bool send_output(const State& rank, const Action& pass) {
    const int stage = rank.own->stage;
    const bool is_forward = pass.kind == ActionKind::forward;
    if (is_forward && !is_last(stage)) send(rank, pass, stage + 1);
    const bool has_gradient = !is_forward && pass.kind != ActionKind::backward_weight;
    if (has_gradient && stage > 0) send(rank, pass, stage - 1);
    return pass.joined;
  }

  void send(const State& from, const Action& pass, int stage) {
    const auto replica = pipeline_.has_own_micro_batches
                             ? static_cast<size_t>(from.own->replica)
                             : static_cast<size_t>(pass.micro_batch) % replicas(stage);
    const size_t to = first_[static_cast<size_t>(stage)] + replica;
    if (unused_.empty()) {
      unused_.push_back(messages_.size());
      messages_.emplace_back();
    }
    const size_t number = unused_.back();
    unused_.pop_back();
    messages_[number] = {to, index_of(ranks_[to], pass.micro_batch), stage > from.own->stage};
    const int sender = std::min(stage, from.own->stage);
    loop_.send(from.own->device, {.kind = EventKind::message_arrives,
                                  .who = ranks_[to].own->device,
                                  .what = number,
                                  .bytes = pipeline_.output_bytes[static_cast<size_t>(sender)]});
  }

  struct Message {
    size_t rank = 0, index = 0;
    bool is_output = false;  // else a gradient
  };

  const ReplayedPipeline& pipeline_;
  EventLoop loop_;
  std::vector<State> ranks_;
  std::vector<size_t> first_;  // rank of each stage
  std::vector<Message> messages_;
  std::vector<size_t> unused_;  // of messages_
  std::vector<double> ends_;    // of the stages
};

}  // namespace

std::vector<double> replay_passes(const ReplayedPipeline& pipeline, const ClusterLinks& links) {
  return PassReplay(pipeline, links).ends();
}

}  // namespace troika::plan
