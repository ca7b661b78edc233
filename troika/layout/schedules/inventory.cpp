#include "troika/layout/schedules/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troika/layout/errors/refuse.h"

namespace troika::layout {

namespace {

constexpr size_t kPassKinds = 4;

// Counts how often each stage runs each micro-batch, by kind of pass.
class PassCounts {
 public:
  PassCounts(const Schedule& schedule, const Inventory& inventory) : inventory_(inventory) {
    const size_t count =
        static_cast<size_t>(inventory.stages) * static_cast<size_t>(inventory.micro_batches);
    for (auto& counts : counts_) counts.resize(count, 0);
    for (size_t r = 0; r < schedule.ranks.size(); ++r) {
      for (const auto& action : schedule.ranks[r]) {
        if (is_pass(action.kind)) add(action, r);
      }
    }
  }

  void require_all() const {
    for (int s = 0; s < inventory_.stages; ++s) {
      for (int m = 0; m < inventory_.micro_batches; ++m) require(s, m);
    }
  }

 private:
  void add(const Action& action, size_t rank) {
    auto& count =
        counts_[static_cast<size_t>(action.kind)][inventory_.at(action.stage, action.micro_batch)];
    if (++count > 1) {
      refuse(fmt::format("rank {} of a schedule", rank), describe(action) + " twice", "once");
    }
  }

  int count(ActionKind kind, int stage, int micro_batch) const {
    return counts_[static_cast<size_t>(kind)][inventory_.at(stage, micro_batch)];
  }

  void require(int stage, int micro_batch) const {
    const auto where = fmt::format("rank {} of a schedule", inventory_.rank(stage));
    const Action forward{ActionKind::forward, stage, micro_batch};
    if (count(forward.kind, stage, micro_batch) == 0) {
      refuse(where, "no " + describe(forward), "one");
    }
    if (!inventory_.trains) return;
    const int whole = count(ActionKind::backward, stage, micro_batch);
    const int input = count(ActionKind::backward_input, stage, micro_batch);
    const int weight = count(ActionKind::backward_weight, stage, micro_batch);
    if (whole != input && input == weight) return;
    refuse(where,
           fmt::format("{} of {}, {} of {} and {} of {}", whole,
                       describe({ActionKind::backward, stage, micro_batch}), input,
                       text_of({ActionKind::backward_input, stage, micro_batch}), weight,
                       text_of({ActionKind::backward_weight, stage, micro_batch})),
           "the first, or both others");
  }

  const Inventory& inventory_;
  std::array<std::vector<uint8_t>, kPassKinds> counts_;
};

}  // namespace

Inventory::Inventory(const Schedule& schedule) {
  size_t forwards = 0;
  for (const auto& actions : schedule.ranks) {
    for (const auto& action : actions) {
      if (action.stage < 0) refuse("stage of an action", text_of(action), "a number from 0 on");
      stages = std::max(stages, action.stage + 1);
      micro_batches = std::max(micro_batches, action.micro_batch + 1);
      forwards += action.kind == ActionKind::forward ? 1 : 0;
      trains |= is_pass(action.kind) && action.kind != ActionKind::forward;
    }
  }
  if (forwards == 0) refuse("a schedule", "no forward pass", "one of each stage and micro-batch");
  // Checked before these numbers determine the size of an allocation.
  const auto wanted = static_cast<size_t>(stages) * static_cast<size_t>(micro_batches);
  if (forwards != wanted) {
    refuse("forward passes of a schedule", std::to_string(forwards),
           fmt::format("{}: {} stages times {} micro-batches, as it has actions of stage {} and of "
                       "micro-batch {}",
                       wanted, stages, micro_batches, stages - 1, micro_batches - 1));
  }
  rank_of.assign(static_cast<size_t>(stages), -1);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const auto& action : schedule.ranks[r]) {
      if (is_pass(action.kind) && action.micro_batch < 0) {
        refuse(fmt::format("rank {} of a schedule", r), describe(action), "a micro-batch");
      }
      int& rank = rank_of[static_cast<size_t>(action.stage)];
      if (rank < 0) rank = static_cast<int>(r);
      if (rank == static_cast<int>(r)) continue;
      refuse(fmt::format("rank {} of a schedule", r),
             fmt::format("{}, of a stage that is on rank {}", describe(action), rank),
             "each stage on one rank");
    }
  }
  for (int s = 0; s < stages; ++s) {
    if (rank(s) < 0) {
      refuse("stages of a schedule", fmt::format("none of number {}", s),
             "consecutive numbers from 0 on");
    }
  }
  PassCounts(schedule, *this).require_all();
}

}  // namespace troika::layout
