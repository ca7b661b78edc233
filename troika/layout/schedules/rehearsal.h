// Runs a schedule on paper, for Schedule::verify().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "troika/layout/schedule.h"
#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/waiting.h"

namespace troika::layout {

// A rank is at one action, or at a batch of messages. A message ends when both ranks are at it and
// its sender has what it sends.
class Rehearsal {
 public:
  // Throws Error(usage) for what Inventory refuses, for messages that no two ranks could exchange,
  // and for gathers, reductions and steps that are missing, repeated or in the wrong place.
  explicit Rehearsal(const Schedule& schedule);

  // Throws Error(usage) where ranks wait for each other for ever.
  void run();

 private:
  // Two stages with messages that skip those between them, by their activations.
  using Skip = std::pair<int, int>;

  void require_groups(size_t rank) const;
  void require_message(const Action& action, size_t rank);
  void require_steps(size_t rank) const;
  size_t index(const Action& action) const;
  bool is_done(ActionKind kind, int stage, int micro_batch) const;
  bool is_done(const Action& action) const { return done_[index(action)] != 0; }
  // What must end before the action can begin and has not; nothing once all has.
  std::optional<Action> needs(const Action& action) const;
  std::optional<Action> forward_needs(const Action& action) const;
  std::optional<Action> backward_needs(const Action& action) const;
  std::optional<Action> all_backward_needs(int stage) const;
  // Whether a message of the batch or the action that a rank is at is `action`.
  bool is_at(size_t rank, const Action& action) const;
  size_t group_end(size_t rank) const;
  bool exchange(size_t rank);
  bool advance(size_t rank);
  std::vector<Waiting> waiting() const;

  const std::vector<std::vector<Action>>& ranks_;
  const Inventory inventory_;
  std::vector<size_t> next_;     // by rank: the first action of the group that it is at
  std::vector<Skip> skips_;      // ascending
  std::vector<uint8_t> done_;    // by index()
  std::vector<int> unfinished_;  // by stage: micro-batches whose backward passes have not all ended
  bool has_moved_ = false;       // in the latest round over the ranks
};

}  // namespace troika::layout
