// Symbolic execution of a schedule, for Schedule::verify().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "troika/layout/schedules/inventory.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/layout/schedules/waiting.h"

namespace troika::layout {

// Each rank is at one action or at one batch of messages. A message completes when both ranks have
// reached it and the sender has computed its content.
class Rehearsal {
 public:
  // Throws the errors of Inventory, and Error(usage) for messages without a matching partner, and
  // for gathers, reductions and steps that are missing, repeated or in the wrong place.
  explicit Rehearsal(const Schedule& schedule);

  // Throws Error(usage) if ranks deadlock.
  void run();

 private:
  // Sending and receiving stage of activations that skip the stages between.
  using Skip = std::pair<int, int>;

  void require_groups(size_t rank) const;
  void require_message(const Action& action, size_t rank);
  void require_steps(size_t rank) const;
  size_t index(const Action& action) const;
  bool is_done(ActionKind kind, int stage, int micro_batch) const;
  bool is_done(const Action& action) const { return done_[index(action)] != 0; }
  // Returns an unfinished dependency of the action; nothing if the action can begin.
  std::optional<Action> needs(const Action& action) const;
  std::optional<Action> forward_needs(const Action& action) const;
  std::optional<Action> backward_needs(const Action& action) const;
  std::optional<Action> all_backward_needs(int stage) const;
  // Whether `action` is the rank's current action or in its current batch.
  bool is_at(size_t rank, const Action& action) const;
  size_t group_end(size_t rank) const;
  bool exchange(size_t rank);
  bool advance(size_t rank);
  std::vector<Waiting> waiting() const;

  const std::vector<std::vector<Action>>& ranks_;
  const Inventory inventory_;
  std::vector<size_t> next_;     // by rank: the first action of its current group
  std::vector<Skip> skips_;      // ascending
  std::vector<uint8_t> done_;    // by index()
  std::vector<int> unfinished_;  // by stage: micro-batches with unfinished backward passes
  bool has_moved_ = false;       // in the latest round over the ranks
};

}  // namespace troika::layout
