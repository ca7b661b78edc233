// Follows the memory of one rank of a pipeline through the actions of a step, without ranks and
// without tensors.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "troika/layout/plan.h"
#include "troika/layout/schedules/edges.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/layout/stage_cut.h"
#include "troika/nn/model.h"
#include "troika/parallel/pipeline/pipeline_place.h"
#include "troika/parallel/pipeline/stages.h"
#include "troika/parallel/pipeline/tied_parameters.h"
#include "troika/plan/memory/exchange_memory.h"
#include "troika/plan/memory/message_buffers.h"
#include "troika/train/memory/stage_memory.h"

namespace troika::train {

// The stages, actions and edges of a plan. Throws the errors of parallel::Pipeline for a plan that
// does not fit the model.
class PipelineShapes {
 public:
  PipelineShapes(const nn::Model& model, const layout::Plan& plan);

  const parallel::StagesOfModel& stages() const { return stages_; }
  layout::StageEnds ends() const;
  int pipeline_ranks() const { return static_cast<int>(schedule_.ranks.size()); }
  // Returns the stages of a rank of the pipeline axis, in their order.
  std::vector<int> stages_of(int pipeline_rank) const;
  // The actions of the first replica, which has no fewer micro-batches than the others.
  std::vector<layout::Action> actions_of(int pipeline_rank) const;
  // Whether a step without flushes ends with a micro-batch's backward pass on this rank's first
  // replica, after which there are no gradients.
  bool ends_step(int pipeline_rank, int micro_batch) const;
  // The replicas of a stage that share the micro-batches; 1 if each has micro-batches of its own.
  int sharing(int stage) const {
    return mesh_.has_uneven_stages() ? mesh_.replicas(rank_of(stage)) : 1;
  }
  // Whether each stage's backward pass has two parts, by the rules of parallel::Pipeline.
  std::vector<bool> splits() const;
  // The depth of the edge of messages between two stages, in training or in evaluations.
  int depth(layout::ActionKind send, int from, int to, bool evaluates = false) const;
  bool are_on_one_rank(int stage, int other) const { return rank_of(stage) == rank_of(other); }
  // The parameters that stages on several ranks use.
  std::vector<parallel::TiedSet> tied_sets() const {
    return parallel::tied_sets(model_, stages_, place_);
  }

 private:
  int rank_of(int stage) const { return ranks_[static_cast<size_t>(stage)]; }

  const nn::Model& model_;
  const layout::Mesh mesh_;
  layout::Schedule schedule_;
  const parallel::StagesOfModel stages_;
  const parallel::PipelinePlace place_;
  std::vector<int> ranks_;                         // by stage
  std::vector<layout::AsynchronousStage> orders_;  // by rank; empty: flushes
  std::vector<layout::MessageEdge> edges_, evaluation_edges_;
};

// The exchanges of one rank's stages: one for each parallel::StagePart.
struct RankExchanges {
  struct Part {
    int stage = 0;
    plan::ExchangeMemory memory;
  };
  std::vector<Part> parts;
  // For each trained parameter of a stage's blocks: the index of its part, and the parameter's
  // index there.
  std::map<int, std::vector<std::pair<size_t, size_t>>> parameters;
};

// Follows parallel::PipelineRun and StageMessages. Assumes that a
// message has been received when its sender sends the next one on the same edge.
class PipelineMemory {
 public:
  // The bytes of one moment, beside parameters, optimizer and batches.
  struct Moment {
    double gradients = 0;
    double buckets = 0;      // gradients to be averaged, and gathered parameters
    double activations = 0;  // kept by other passes than the current one
    double pass = 0;         // of the current pass
    double kept = 0;         // of these, the bytes that its backward pass keeps or needs
    double messages = 0;     // receive buffers, and sent gradients
  };
  using Observer = std::function<void(const Moment&)>;

  // `stages` are the memories of all stages; `own` are the exchanges of this rank's stages. All
  // must outlive this object. `keeps_sent`: whether a sent gradient stays in memory until the next
  // one is sent, because the back end does not copy it.
  PipelineMemory(const PipelineShapes& shapes, int pipeline_rank,
                 const std::vector<StageMemory>& stages, RankExchanges& own, bool keeps_sent);

  // Simulates a step in which edges have the buffers of earlier steps, and reports its moments.
  // `after_validation`: all parameters that ranks shard are whole at first.
  void step(bool after_validation, const Observer& observe);
  // The bytes of the receive buffers between steps, with those of evaluations.
  double idle_buffers() const;
  // The bytes of the receive buffers of evaluations.
  double evaluation_buffers() const;

 private:
  // From a replica of a stage, to a stage; tensor.
  using Edge = std::tuple<layout::ActionKind, int, int, int, size_t>;
  using Pass = std::pair<int, int>;  // stage and micro-batch

  // `action` is a pass on stage `to`.
  plan::ReceiveBuffers& buffers(layout::ActionKind send, int from, const layout::Action& action,
                                size_t tensor, double bytes);
  const StageMemory& memory(int stage) const { return stages_[static_cast<size_t>(stage)]; }
  bool is_here(int stage) const { return shapes_.are_on_one_rank(stage, own_stages_.front()); }
  void end_step();
  void forward(const layout::Action& action);
  void backward(const layout::Action& action, bool splits);
  void backward_weight(const layout::Action& action);
  void follow(const layout::Action& action, const std::vector<PassPart>& parts);
  // Gives back the activations or gradients that the action's micro-batch has received.
  void give_back(layout::ActionKind send, const layout::Action& action);
  void receive_activations(const layout::Action& action);
  void receive_gradients(const layout::Action& action);
  void report(int stage, double pass, double others);
  double kept_by_others(const Pass& pass) const;

  const PipelineShapes& shapes_;
  const int pipeline_rank_;
  const std::vector<int> own_stages_;
  const std::vector<StageMemory>& stages_;
  RankExchanges& own_;
  const bool keeps_sent_;
  const std::vector<layout::Action> actions_;
  std::map<Edge, plan::ReceiveBuffers> buffers_;
  std::map<Pass, double> kept_;
  std::map<std::tuple<int, int, int>, double> own_gradients_;  // from, to, micro-batch
  std::map<std::pair<int, int>, double> sent_;                 // the last gradients sent; from, to
  std::map<int, size_t> last_backward_;  // the action that completes a stage's gradients; by stage
  size_t now_ = 0;                       // index of the current action
  Observer observe_;
};

}  // namespace troika::train
