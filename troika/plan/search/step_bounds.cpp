#include "troika/plan/search/step_bounds.h"

#include <algorithm>
#include <limits>

namespace troika::plan {

std::vector<StepStage> equal_stages(const StepModel& model, const StepSettings& settings,
                                    const std::vector<size_t>& places, size_t count, int replicas) {
  const auto& blocks = model.problem().profiles[settings.profile].blocks;
  std::vector<double> sums{0};  // of seconds, before each place
  size_t block = 0;
  for (const size_t end : places) {
    sums.push_back(sums.back());
    for (; block < end; ++block) sums.back() += blocks[model.order()[block]].seconds();
  }
  std::vector<StepStage> stages;
  size_t place = 0;
  for (size_t left = count; left > 0; --left) {
    const double end = sums[place] + (sums.back() - sums[place]) / static_cast<double>(left);
    const size_t last = places.size() - left + 1;  // each later stage has a place of its own
    ++place;
    while (place < last && (left == 1 || (sums[place] + sums[place + 1]) / 2 <= end)) ++place;
    stages.push_back({places[place - 1], replicas});
  }
  return stages;
}

LaterStages::LaterStages(const StepModel& model, const StepSettings& settings,
                         const std::vector<size_t>& places, int replicas, double lacking)
    : replicas_(replicas),
      stages_(static_cast<size_t>(settings.groups() / replicas)),
      places_(places.size()),
      messages_(stages_ + 1, 0),
      can_follow_(stages_ * places_, false) {
  for (size_t stage = stages_ - 1; stage > 0; --stage) {
    const int used = static_cast<int>(stage) * replicas;
    double least = std::numeric_limits<double>::infinity();
    for (size_t place = stage; place < places_; ++place) {
      const size_t begin = places[place - 1];
      const auto wire = model.boundary(settings, begin, used - replicas, replicas, replicas);
      least = std::min(least, wire.latency);
      const bool is_last = stage + 1 == stages_;
      for (size_t next = is_last ? places_ : place + 1; next <= places_; ++next) {
        if (!is_last && (next == places_ || !can_follow(next, used + replicas))) continue;
        const auto own = model.stage(settings, begin, places[next - 1], used, replicas);
        if (own.lacking_bytes >= lacking) continue;
        can_follow_[stage * places_ + place] = true;
        break;
      }
    }
    messages_[stage] = messages_[stage + 1] + least;
  }
}

}  // namespace troika::plan
