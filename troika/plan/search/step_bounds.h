// Bounds on plans that a search has not completed yet.
#pragma once

#include <cstddef>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// Returns `count` stages with `replicas` devices each that take about equal times and end at some
// of these places.
std::vector<StepStage> equal_stages(const StepModel& model, const StepSettings& settings,
                                    const std::vector<size_t>& places, size_t count, int replicas);

// Bounds on the later stages of plans whose stages all have the same number of replicas.
class LaterStages {
 public:
  // Stages may end at `places`, the last of which is the end of the model, and may lack less than
  // `lacking` bytes.
  LaterStages(const StepModel& model, const StepSettings& settings,
              const std::vector<size_t>& places, int replicas, double lacking);

  // Returns the least latency of the messages of stages after the first `used` devices.
  double least_messages(int used) const { return messages_[stage_after(used)]; }
  // Whether stages from this place on, after `used` devices, can lack so few bytes.
  bool can_follow(size_t place, int used) const {
    return stage_after(used) == stages_ || can_follow_[stage_after(used) * places_ + place];
  }

 private:
  size_t stage_after(int used) const { return static_cast<size_t>(used / replicas_); }

  int replicas_;
  size_t stages_, places_;
  std::vector<double> messages_;  // by the number of stages before
  std::vector<bool> can_follow_;  // by the number of stages before, and the place of the last one
};

}  // namespace troika::plan
