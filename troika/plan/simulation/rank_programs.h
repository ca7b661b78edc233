// The actions of each rank of a mesh, prepared for a simulation.
#pragma once

#include <optional>
#include <vector>

#include "troika/layout/mesh.h"
#include "troika/layout/schedules/schedule.h"

namespace troika::plan {

// An action of a rank, or two passes that begin together.
struct ProgramItem {
  layout::Action action = {};
  std::optional<layout::Action> beside = {};
  // If the action is a pass: the messages of other ranks that the item receives.
  std::vector<layout::Action> takes = {};
  bool ends_stage = false;  // whether this is the stage's last backward pass of a step on this rank

  // Whether this is the last backward pass of this stage.
  bool ends(int stage) const { return ends_stage && action.stage == stage; }
};

// Returns the one or two passes of a program item.
std::vector<layout::Action> passes_of(const ProgramItem& item);

// The destination of a message: a rank, and the pass in its program that takes the message.
struct MessageTarget {
  int rank = 0;
  size_t item = 0;
};

// The program of each rank in a step. If all stages have the same number of replicas, each replica
// has its own micro-batches; otherwise the replicas of a stage share the micro-batches
// (layout::actions_of_replica()). A rank's "place" is its coordinate on the pipeline axis.
class RankPrograms {
 public:
  // A group of ranks that carry out collectives together, a rank's index in it, and the number of
  // the group among those along the same axes at the same place.
  struct Member {
    size_t group = 0;
    size_t index = 0;
    size_t number = 0;
  };

  // `schedule` must be complete (layout::complete()). Throws Error(usage) for a mesh with axes
  // other than pipeline, data, context and tensor, for a tensor or context axis beside stages with
  // different numbers of replicas, and for a schedule that does not have one line per rank of the
  // pipeline axis; throws the errors of layout::Inventory.
  RankPrograms(const layout::Schedule& schedule, const layout::Mesh& mesh);

  int ranks() const { return static_cast<int>(places_.size()); }
  int stages() const { return static_cast<int>(place_of_stage_.size()); }
  const std::vector<ProgramItem>& of(int rank) const;
  // Returns the coordinate of a rank on the pipeline axis.
  int place(int rank) const { return places_[static_cast<size_t>(rank)]; }
  int place_of_stage(int stage) const { return place_of_stage_[static_cast<size_t>(stage)]; }
  // Returns the ranks of a place, ascending.
  const std::vector<int>& ranks_of(int place) const {
    return ranks_of_[static_cast<size_t>(place)];
  }
  // The groups along the data and the context axis, which average gradients, and along the context
  // and the tensor axis, which compute blocks together.
  const std::vector<std::vector<int>>& groups() const { return groups_; }
  const Member& averaging(int rank) const { return averaging_[static_cast<size_t>(rank)]; }
  const Member& computing(int rank) const { return computing_[static_cast<size_t>(rank)]; }
  MessageTarget target(int rank, const layout::Action& send) const;

 private:
  void prepare(std::vector<layout::Action> actions);
  // Makes the groups along axes.
  std::vector<Member> members(const layout::Mesh& mesh, const std::vector<layout::Axis>& axes);

  bool is_uneven_;
  int micro_batches_;
  std::vector<int> places_;
  std::vector<size_t> index_of_;  // of a rank in ranks_of(place(rank))
  std::vector<int> place_of_stage_;
  std::vector<std::vector<int>> ranks_of_;  // by place
  std::vector<std::vector<int>> groups_;
  std::vector<Member> averaging_, computing_;              // by rank
  std::vector<std::vector<ProgramItem>> programs_;         // by place, or by rank if uneven
  std::vector<size_t> takes_activation_, takes_gradient_;  // items, by stage and micro-batch
};

}  // namespace troika::plan
