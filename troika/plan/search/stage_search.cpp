#include "troika/plan/search/stage_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "troika/plan/search/step_bounds.h"
#include "troika/plan/search/step_choices.h"

namespace troika::plan {

namespace {

constexpr double kNoPlan = std::numeric_limits<double>::infinity();
// On more devices, stages with different numbers of replicas have multiples of a unit, except for
// the last few devices. This is the largest number of units.
constexpr int kMostUnits = 32;
constexpr double kSameSum = 1e-12;
constexpr double kSameTime = 1e-9;

// The cost of a plan's first stages.
struct Label {
  PartialCost cost = {};
  double lacking = -kNoPlan;
  int before = -1;  // the label without the last stage
  StepStage last = {};
};

// Finds the best stages for given settings.
class Search {
 public:
  // `places` are the ends of blocks at which a stage may end, ascending.
  Search(const StepModel& model, const StepSettings& settings, const std::vector<size_t>& places)
      : model_(model),
        settings_(settings),
        places_(places),
        devices_(settings.groups()),
        is_even_(model.has_even_stages(settings)) {
    for (int count = 1; count <= devices_; ++count) {
      if (is_even_ && devices_ % count != 0) continue;
      if (settings.family == StepFamily::one_stage && count < devices_) continue;
      counts_.push_back(count);
      if (model.problem().straight) break;
    }
  }

  // Returns the fastest plan of less than `limit` seconds whose stages lack at most `allowance`
  // bytes.
  std::optional<StepPlan> fastest(double allowance, double limit) {
    least_lack_ = false;
    allowance_ = allowance;
    limit_ = limit;
    // The search need not consider slower plans than this one.
    auto known = fastest_of_equal_stages();
    if (known) limit_ = known->seconds * (1 + kSameTime);
    auto found = run();
    return found && !(known && known->seconds < found->seconds) ? found : known;
  }
  // Returns the fastest one whose stages take about equal times and have equal numbers of replicas.
  std::optional<StepPlan> fastest_equal(double allowance, double limit) {
    allowance_ = allowance;
    limit_ = limit;
    return fastest_of_equal_stages();
  }
  // Returns the plan whose worst stage lacks the fewest bytes, if they are fewer than `limit`.
  std::optional<StepPlan> least_lacking(double limit) {
    least_lack_ = true;
    allowance_ = kNoPlan;
    limit_ = limit;
    return run();
  }

 private:
  // The first stages of plans. They end at the same place, on the same number of devices, and their
  // last stages have the same number of replicas.
  struct State {
    int replicas = 0;
    bool is_equal = true;  // all stages have as many replicas
    std::vector<int> labels = {};
  };

  // Returns the fastest plan within the limits whose stages take about equal times and have equal
  // numbers of replicas.
  std::optional<StepPlan> fastest_of_equal_stages() const {
    std::optional<StepPlan> best;
    for (const int count : counts_) {
      const auto stages = static_cast<size_t>(devices_ / count);
      const bool is_possible = devices_ % count == 0 && stages > 1 && stages <= places_.size();
      if (!is_possible || !model_.shares_evenly(settings_, count)) continue;
      auto plan =
          model_.estimate(settings_, equal_stages(model_, settings_, places_, stages, count));
      const double limit = best ? best->seconds : limit_;
      if (plan.lacking_bytes <= allowance_ && plan.seconds < limit) best = std::move(plan);
    }
    return best;
  }
  std::optional<StepPlan> run() {
    if (!is_even_) return run_once();
    std::optional<StepPlan> best;
    for (const int count : counts_) {
      if (count == devices_) continue;
      equal_ = count;
      if (auto plan = run_once()) best = std::move(plan);  // within limit_, so better
    }
    return best;
  }

  // Whether the search tries a stage of `count` replicas after stages on `used` devices.
  bool is_tried(int count, int used) const {
    const int left = devices_ - used;
    if (count > left || (equal_ > 0 && count != equal_)) return false;
    if (is_even_ || devices_ <= kMostExactDevices) return true;
    const int unit = (devices_ + kMostUnits - 1) / kMostUnits;
    const bool ends = count + 2 >= left;  // the last few devices, as in 15-1
    const bool is_small = left <= unit && (count & (count - 1)) == 0;
    return count % unit == 0 || ends || is_small;
  }

  std::optional<StepPlan> run_once() {
    labels_.clear();
    best_ = -1;
    const size_t most_stages = static_cast<size_t>(devices_ / unit());
    if (equal_ > 0 && most_stages > places_.size()) return std::nullopt;
    states_.assign(places_.size() * most_stages, {});
    later_.reset();
    // The nearest plans lack less than the limit; others may lack the allowance.
    const double lacking = least_lack_ ? limit_ : up_to(allowance_);
    if (equal_ > 0) later_.emplace(model_, settings_, places_, equal_, lacking);
    const std::vector<State> start{{.labels = {-1}}};
    extend(0, 0, start);
    for (size_t cut = 1; cut < places_.size(); ++cut) {
      for (int used = unit(); used < devices_; used += unit()) {
        // Each stage ends at a place of its own.
        if (equal_ > 0 && static_cast<size_t>(used / equal_) > cut) break;
        auto& states = states_at(cut, used);
        if (!states.empty()) extend(cut, used, states);
        states.clear();
      }
    }
    if (best_ < 0) return std::nullopt;
    std::vector<StepStage> stages;
    for (int at = best_; at >= 0; at = labels_[static_cast<size_t>(at)].before) {
      stages.push_back(labels_[static_cast<size_t>(at)].last);
    }
    std::ranges::reverse(stages);
    return model_.estimate(settings_, stages);
  }

  std::vector<State>& states_at(size_t cut, int used) {
    const auto units = static_cast<size_t>(devices_ / unit());
    return states_[cut * units + static_cast<size_t>(used / unit())];
  }
  // The numbers of devices in use are multiples of it.
  int unit() const { return equal_ > 0 ? equal_ : 1; }

  // Adds a stage to all plans that have `used` devices and end at place `cut`.
  void extend(size_t cut, int used, const std::vector<State>& states) {
    const bool is_one_stage = settings_.family == StepFamily::one_stage;
    for (const int count : counts_) {
      if (!is_tried(count, used)) continue;
      const bool is_last = used + count == devices_;
      if (is_last && cut == 0 && !is_one_stage) continue;
      // Each later stage ends at a place of its own.
      const int after = equal_ > 0 ? (devices_ - used - count) / equal_ : is_last ? 0 : 1;
      const size_t first = is_last ? places_.size() : cut + 1;
      for (size_t next = first; next + static_cast<size_t>(after) <= places_.size(); ++next) {
        if (!add_stage(cut, used, states, next, count)) break;
      }
    }
  }

  // Returns whether a stage that ends later can be part of a plan within the limit.
  bool add_stage(size_t cut, int used, const std::vector<State>& states, size_t next, int count) {
    const size_t begin = cut == 0 ? 0 : places_[cut - 1], end = places_[next - 1];
    const int left = devices_ - used - count;
    if (later_ && !later_->can_follow(next, used + count)) return true;
    const auto own = model_.stage(settings_, begin, end, used, count);
    // More blocks take longer, but do not always need more memory: that of messages may be less.
    const double alone = std::max(own.steady + own.backward, own.whole);
    if (!least_lack_ && alone * (1 - kSameSum) >= limit_) return false;
    if (own.lacking_bytes > allowance_) return true;
    if (least_lack_ && own.lacking_bytes >= limit_) return true;
    const double messages = later_ ? later_->least_messages(used + count) : 0;
    const auto rest = left > 0 ? model_.least(settings_, end, left) : StepModel::Least{};
    if (left > 0 && !least_lack_) find_onward(end, used, count);
    for (const auto& state : states) {
      const bool stays_equal = state.is_equal && (state.replicas == 0 || state.replicas == count);
      if (left == 0 && stays_equal && !model_.shares_evenly(settings_, count)) continue;
      const auto wire =
          state.replicas == 0
              ? model_.before_first(settings_)
              : model_.boundary(settings_, begin, used - state.replicas, state.replicas, count);
      for (const int before : state.labels) {
        Label label = before < 0 ? Label{} : labels_[static_cast<size_t>(before)];
        label.cost.add(wire, own);
        label.cost.expect(rest.steady, rest.backward, rest.whole);
        label.lacking = std::max(label.lacking, own.lacking_bytes);
        label.before = before;
        label.last = {end, count};
        const double least = label.cost.seconds(rest.latency + messages);
        if (value_of(label, least * (1 - kSameSum)) >= limit_) continue;
        if (left == 0) {
          add_whole(label);
        } else {
          add(label, states_at(next, used + count), count, stays_equal);
        }
      }
    }
    return true;
  }

  // Finds the ways in which plans go on after a stage of `count` replicas that ends at block `end`.
  void find_onward(size_t end, int used, int count) {
    onward_.clear();
    for (const int following : counts_) {
      if (!is_tried(following, used + count)) continue;
      onward_.push_back({model_.boundary(settings_, end, used, count, following),
                         model_.in_flight(settings_, used + count, following)});
    }
  }

  double value_of(const Label& label, double seconds) const {
    return least_lack_ ? label.lacking : seconds;
  }
  bool is_below(const Label& one, const Label& other) const {
    return least_lack_ ? one.lacking <= other.lacking : one.cost.is_below(other.cost, onward_);
  }

  void add_whole(const Label& label) {
    const double value = value_of(label, label.cost.seconds());
    if (value >= limit_) return;
    limit_ = value;
    best_ = static_cast<int>(labels_.size());
    labels_.push_back(label);
  }
  void add(const Label& label, std::vector<State>& states, int replicas, bool is_equal) {
    auto state = std::ranges::find_if(states, [&](const State& one) {
      return one.replicas == replicas && one.is_equal == is_equal;
    });
    if (state == states.end()) {
      states.push_back({.replicas = replicas, .is_equal = is_equal});
      state = states.end() - 1;
    }
    auto& known = state->labels;
    for (const int other : known) {
      if (is_below(labels_[static_cast<size_t>(other)], label)) return;
    }
    std::erase_if(known,
                  [&](int other) { return is_below(label, labels_[static_cast<size_t>(other)]); });
    known.push_back(static_cast<int>(labels_.size()));
    labels_.push_back(label);
  }

  const StepModel& model_;
  const StepSettings settings_;
  const std::vector<size_t>& places_;
  const int devices_;  // or groups of devices on tensor axes
  const bool is_even_;
  std::vector<int> counts_;  // of replicas
  bool least_lack_ = false;
  double allowance_ = 0, limit_ = kNoPlan;
  int equal_ = 0;  // replicas of all stages; 0: any
  std::vector<Label> labels_;
  std::optional<LaterStages> later_;        // if all stages have equal_ replicas
  std::vector<Onward> onward_;              // see find_onward()
  std::vector<std::vector<State>> states_;  // by place and units of devices in use
  int best_ = -1;
};

}  // namespace

std::optional<StepPlan> fastest_stages(const StepModel& model, const StepSettings& settings,
                                       const std::vector<size_t>& places, double allowance,
                                       double limit) {
  return Search(model, settings, places).fastest(allowance, limit);
}

std::optional<StepPlan> fastest_of_equal_stages(const StepModel& model,
                                                const StepSettings& settings,
                                                const std::vector<size_t>& places, double allowance,
                                                double limit) {
  return Search(model, settings, places).fastest_equal(allowance, limit);
}

std::optional<StepPlan> least_lacking_stages(const StepModel& model, const StepSettings& settings,
                                             const std::vector<size_t>& places, double limit) {
  return Search(model, settings, places).least_lacking(limit);
}

double up_to(double value) {
  return std::nextafter(value, kNoPlan);
}

// Returns at most `most` places at which a stage may end, at equal distances in time and
// parameters.
std::vector<size_t> places_of(const StepModel& model, size_t most) {
  const size_t count = model.blocks();
  std::vector<size_t> places;
  double seconds = 0, bytes = 0, sum = 0;
  const auto& blocks = model.problem().profiles.front().blocks;
  for (const auto& block : blocks) {
    seconds += block.seconds();
    bytes += block.parameter_bytes;
  }
  bool reads_alone = true;
  for (size_t i = 0; i < count; ++i) {
    const auto& block = blocks[model.order()[i]];
    // Blocks that only read data are not a stage by themselves.
    reads_alone = reads_alone && block.layer.starts_with("Input");
    if (reads_alone && i + 1 < count) continue;
    sum += (seconds > 0 ? block.seconds() / seconds / 2 : 0) +
           (bytes > 0 ? block.parameter_bytes / bytes / 2 : 0);
    const auto share = static_cast<double>(places.size() + 1) / static_cast<double>(most);
    if (count <= most || i + 1 == count || sum >= share) places.push_back(i + 1);
  }
  return places;
}

}  // namespace troika::plan
