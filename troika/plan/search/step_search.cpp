#include "troika/plan/search/step_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace troika::plan {

namespace {

constexpr double kNoPlan = std::numeric_limits<double>::infinity();
constexpr size_t kMostPlaces = 40;
constexpr int kMostExactDevices = 16;

// The cost of a plan's first stages.
struct Label {
  double latency = 0, steady = 0, exposed = 0, lacking = -kNoPlan;
  int before = -1;  // the label without the last stage
  StepStage last = {};

  double seconds() const { return latency + steady + exposed; }
};

// Finds the best stages for given settings.
class Search {
 public:
  Search(const StepModel& model, const StepSettings& settings, const std::vector<size_t>& places)
      : model_(model), settings_(settings), places_(places) {}

  // Returns the fastest plan faster than `limit` whose stages lack at most `allowance` bytes.
  std::optional<StepPlan> fastest(double allowance, double limit) {
    least_lack_ = false;
    allowance_ = allowance;
    limit_ = limit;
    return run();
  }
  // Returns the plan whose worst stage lacks least.
  std::optional<StepPlan> least_lacking() {
    least_lack_ = true;
    allowance_ = limit_ = kNoPlan;
    return run();
  }

 private:
  // A number of places that are cut off, of devices in use, and of replicas of the last stage;
  // whether all stages have as many replicas.
  using State = std::tuple<size_t, int, int, bool>;

  bool is_equal_family() const {
    return settings_.family == StepFamily::pipeline_rows ||
           settings_.family == StepFamily::zero_bubble;
  }
  std::vector<int> replicas_for(int used) const {
    const int left = settings_.devices - used;
    std::vector<int> counts;
    for (int count = 1; count <= left; ++count) {
      if (model_.problem().straight && count > 1) break;
      const bool divides = settings_.devices % count == 0;
      if (is_equal_family() && (!divides || (equal_ > 0 && count != equal_))) continue;
      // The last few devices, as in 15-1, and powers and halves stand for all numbers.
      const bool is_likely = divides || count + 2 >= left;
      if (settings_.devices > kMostExactDevices && !is_likely) continue;
      counts.push_back(count);
    }
    return counts;
  }

  std::optional<StepPlan> run() {
    std::optional<StepPlan> best;
    if (!is_equal_family()) return run_once();
    for (int count = 1; count < settings_.devices; ++count) {
      if (settings_.devices % count != 0) continue;
      equal_ = count;
      auto plan = run_once();
      if (plan && (!best || is_better(*plan, *best))) best = std::move(plan);
    }
    return best;
  }
  bool is_better(const StepPlan& one, const StepPlan& other) const {
    return least_lack_ ? one.lacking_bytes < other.lacking_bytes : one.seconds < other.seconds;
  }

  std::optional<StepPlan> run_once() {
    labels_.clear();
    states_.clear();
    best_ = -1;
    extend(0, 0, {}, true, {-1});
    for (size_t cut = 1; cut < places_.size(); ++cut) {
      for (int used = 1; used < settings_.devices; ++used) {
        for (int replicas = 1; replicas <= used; ++replicas) {
          for (const bool is_equal : {false, true}) {
            const auto found = states_.find({cut, used, replicas, is_equal});
            if (found == states_.end()) continue;
            const auto open = found->second;
            extend(cut, used, replicas, is_equal, open);
          }
        }
      }
    }
    if (best_ < 0) return std::nullopt;
    std::vector<StepStage> stages;
    for (int at = best_; at >= 0; at = labels_[static_cast<size_t>(at)].before) {
      stages.push_back(labels_[static_cast<size_t>(at)].last);
    }
    std::ranges::reverse(stages);
    return model_.price(settings_, stages);
  }

  // Adds a stage after each of the labels `open`, which have `used` devices and end at place `cut`.
  void extend(size_t cut, int used, std::optional<int> replicas, bool is_equal,
              const std::vector<int>& open) {
    const size_t begin = cut == 0 ? 0 : places_[cut - 1];
    for (const int count : replicas_for(used)) {
      const bool is_last = used + count == settings_.devices;
      const bool stays_equal = is_equal && count == replicas.value_or(count);
      if (is_last && stays_equal && !model_.shares_evenly(settings_.profile, count)) continue;
      if (is_last && cut == 0 && settings_.family != StepFamily::one_stage) continue;
      if (!is_last && settings_.family == StepFamily::one_stage) continue;
      StepModel::Cost wire;
      if (replicas) {
        wire = model_.boundary(settings_, begin, used - *replicas, *replicas, count);
      }
      const size_t first = is_last ? places_.size() : cut + 1;
      const size_t end = is_last ? places_.size() : places_.size() - 1;
      for (size_t next = first; next <= end; ++next) {
        const auto own = model_.stage(settings_, begin, places_[next - 1], used, count);
        if (own.lacking_bytes > allowance_) continue;
        for (const int before : open) {
          Label label = before < 0 ? Label{} : labels_[static_cast<size_t>(before)];
          label.latency += wire.latency + own.latency;
          label.steady = std::max({label.steady, wire.steady, own.steady});
          label.exposed = std::max(label.exposed, own.exposed);
          label.lacking = std::max(label.lacking, own.lacking_bytes);
          label.before = before;
          label.last = {places_[next - 1], count};
          add(std::move(label), {next, used + count, count, stays_equal}, is_last);
        }
      }
    }
  }

  bool is_below(const Label& one, const Label& other) const {
    if (least_lack_) return one.lacking <= other.lacking;
    return one.latency <= other.latency && one.steady <= other.steady &&
           one.exposed <= other.exposed;
  }

  void add(Label label, const State& state, bool is_last) {
    if (!least_lack_ && label.seconds() >= limit_) return;
    if (is_last) {
      if (best_ >= 0) {
        const auto& best = labels_[static_cast<size_t>(best_)];
        if (least_lack_ ? label.lacking >= best.lacking : label.seconds() >= best.seconds()) return;
      }
      best_ = static_cast<int>(labels_.size());
      if (!least_lack_) limit_ = std::min(limit_, label.seconds());
      labels_.push_back(std::move(label));
      return;
    }
    auto& known = states_[state];
    for (const int other : known) {
      if (is_below(labels_[static_cast<size_t>(other)], label)) return;
    }
    std::erase_if(known,
                  [&](int other) { return is_below(label, labels_[static_cast<size_t>(other)]); });
    known.push_back(static_cast<int>(labels_.size()));
    labels_.push_back(std::move(label));
  }

  const StepModel& model_;
  const StepSettings settings_;
  const std::vector<size_t>& places_;  // ends of blocks at which a stage may end, ascending
  bool least_lack_ = false;
  double allowance_ = 0, limit_ = kNoPlan;
  int equal_ = 0;  // replicas of all stages; 0: any
  std::vector<Label> labels_;
  std::map<State, std::vector<int>> states_;
  int best_ = -1;
};

std::vector<size_t> places_of(const StepModel& model) {
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
    // Layers that only read data are no stage.
    reads_alone = reads_alone && block.layer.starts_with("Input");
    if (reads_alone && i + 1 < count) continue;
    sum += (seconds > 0 ? block.seconds() / seconds / 2 : 0) +
           (bytes > 0 ? block.parameter_bytes / bytes / 2 : 0);
    const auto share = static_cast<double>(places.size() + 1) / kMostPlaces;
    if (count <= kMostPlaces || i + 1 == count || sum >= share) places.push_back(i + 1);
  }
  return places;
}

// All settings apart from the number of devices, the simplest first.
std::vector<StepSettings> all_settings(const StepModel& model) {
  std::vector<StepSettings> all;
  for (const auto family : {StepFamily::one_stage, StepFamily::pipeline, StepFamily::pipeline_rows,
                            StepFamily::zero_bubble}) {
    for (size_t profile = 0; profile < model.problem().profiles.size(); ++profile) {
      if (model.micro_batches(profile) == 0) continue;
      const bool splits = model.problem().profiles[profile].splits_backward;
      if (family == StepFamily::zero_bubble && !splits) continue;
      for (const bool recompute : {false, true}) {
        const int most_zero = family == StepFamily::one_stage ? 3 : 1;
        for (int zero = 0; zero <= most_zero; ++zero) {
          all.push_back(
              {.profile = profile, .recompute = recompute, .zero_stage = zero, .family = family});
        }
      }
    }
  }
  return all;
}

std::vector<int> device_counts(const StepModel& model, StepFamily family) {
  const int all = model.problem().cluster.ranks();
  const bool is_straight = model.problem().straight && family == StepFamily::one_stage;
  std::vector<int> counts;
  for (int count = family == StepFamily::one_stage ? 1 : 2; count <= all; ++count) {
    if (is_straight && count > 1) break;
    if (all > kMostExactDevices && count < all && all % count != 0) continue;
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

StepSearch search_steps(const StepModel& model) {
  StepSearch result{.lower_bound = model.lower_bound()};
  const auto places = places_of(model);
  result.is_exact =
      model.blocks() <= kMostPlaces && model.problem().cluster.ranks() <= kMostExactDevices;
  const auto settings_with = [&](StepSettings settings, int devices) {
    settings.devices = devices;
    return settings;
  };
  double least_lack = kNoPlan;
  for (const auto& settings : all_settings(model)) {
    std::optional<StepPlan> fastest, nearest;
    for (const int devices : device_counts(model, settings.family)) {
      Search search(model, settings_with(settings, devices), places);
      auto plan = search.fastest(0, fastest ? fastest->seconds : kNoPlan);
      if (plan) fastest = std::move(plan);
      if (fastest) continue;
      plan = search.least_lacking();
      if (plan && (!nearest || plan->lacking_bytes < nearest->lacking_bytes)) {
        nearest = std::move(plan);
      }
    }
    if (!fastest && !nearest) continue;
    const auto& found = fastest ? fastest : nearest;
    const bool is_replicated = std::ranges::any_of(
        found->stages, [](const StepStage& stage) { return stage.replicas > 1; });
    if (settings.zero_stage > 0 && !is_replicated) continue;  // as without ZeRO
    if (fastest && (!result.best || fastest->seconds < result.best->seconds)) {
      result.best = fastest;
    }
    least_lack = std::min(least_lack, found->lacking_bytes);
    result.alternatives.push_back(*found);
  }
  if (result.best) return result;
  for (const auto& settings : all_settings(model)) {
    for (const int devices : device_counts(model, settings.family)) {
      Search search(model, settings_with(settings, devices), places);
      auto plan = search.fastest(least_lack, result.nearest ? result.nearest->seconds : kNoPlan);
      if (plan) result.nearest = std::move(plan);
    }
  }
  return result;
}

}  // namespace troika::plan
