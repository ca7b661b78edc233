#include "troika/plan/search/step_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "troika/plan/search/pipeline_search.h"
#include "troika/plan/search/stage_search.h"
#include "troika/plan/search/step_choices.h"

namespace troika::plan {

namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr size_t kMostPlaces = 40;
// The limit if all stages have the same number of replicas, where the search is much faster.
constexpr size_t kMostEvenPlaces = 128;
constexpr int64_t kMostEffort = 10'000'000;  // of PipelineSearch; some seconds

}  // namespace

bool fits_whole(const StepSearch& search) {
  return std::ranges::any_of(search.alternatives, [](const StepPlan& plan) {
    return plan.is_whole() && plan.lacking_bytes <= 0;
  });
}

void prefer_simple(StepSearch& search, double margin, const std::function<void(StepPlan&)>& check) {
  std::vector<bool> is_checked(search.alternatives.size(), !check);
  for (;;) {
    double fastest = kNoTime;
    for (const auto& plan : search.alternatives) {
      if (plan.lacking_bytes <= 0) fastest = std::min(fastest, plan.seconds);
    }
    const auto simple = std::ranges::find_if(search.alternatives, [&](const StepPlan& plan) {
      return plan.lacking_bytes <= 0 && plan.seconds <= (1 + margin) * fastest;
    });
    if (simple == search.alternatives.end()) break;
    const auto index = static_cast<size_t>(simple - search.alternatives.begin());
    if (is_checked[index]) {
      search.best = *simple;
      return;
    }
    check(*simple);
    is_checked[index] = true;
  }
  if (!search.best) return;  // none did before, so search_steps() has found the nearest
  search.best.reset();
  search.nearest = *std::ranges::min_element(search.alternatives, {}, &StepPlan::lacking_bytes);
}

namespace {

// The search over all settings.
class Alternatives {
 public:
  explicit Alternatives(const StepModel& model)
      : model_(model),
        some_(places_of(model, kMostPlaces)),
        many_(places_of(model, kMostEvenPlaces)) {
    result_.lower_bound = model.lower_bound();
    result_.is_exact = visits_all();
    for (const auto axes : kAxesKinds) {
      for (const auto& settings : all_settings(model, axes)) {
        kinds_.push_back({settings, axes});
      }
    }
  }

  StepSearch search() {
    for (size_t kind = 0; kind < kinds_.size(); ++kind) add_best(kind);
    if (result_.best) {
      if (visits_all()) replay_faster();
    } else {
      find_nearest();
    }
    result_.is_exact = visits_all() && !effort_.is_exceeded();
    return std::move(result_);
  }

 private:
  struct Kind {
    StepSettings settings = {};
    AxesKind axes = AxesKind::none;
  };

  // Whether the model and the cluster are small enough to consider all plans.
  bool visits_all() const {
    return model_.blocks() <= kMostPlaces && model_.problem().cluster.ranks() <= kMostExactDevices;
  }
  const std::vector<size_t>& places(const StepSettings& settings) const {
    return model_.has_even_stages(settings) ? many_ : some_;
  }
  std::vector<StepSettings> settings_of(const Kind& kind) const {
    return on_devices(model_, kind.settings, kind.axes);
  }

  // Returns the plan of least estimate. With many devices or blocks, sums that are hidden hardly
  // change which cut is best, so the search then tries fewer of them.
  std::optional<StepPlan> fastest_estimate(const StepSettings& settings, double allowance,
                                           double limit) const {
    const bool tries_few = settings.tensor_overlap && settings.family != StepFamily::one_stage;
    return tries_few && !visits_all()
               ? fastest_of_equal_stages(model_, settings, places(settings), allowance, limit)
               : fastest_stages(model_, settings, places(settings), allowance, limit);
  }

  // Returns the same stages with passes that take turns, if they fit.
  std::optional<StepPlan> with_overlap(const StepPlan& without) const {
    auto settings = without.settings;
    settings.tensor_overlap = true;
    const auto& allows = model_.problem().allows;
    if (!model_.shares_evenly(settings, without.stages.front().replicas)) return std::nullopt;
    if (allows && !allows(settings, false)) return std::nullopt;
    auto plan = model_.estimate(settings, without.stages);
    return plan.lacking_bytes <= 0 ? std::optional(std::move(plan)) : std::nullopt;
  }

  // Returns the alternative of a kind; null if it has none.
  const StepPlan* alternative(size_t number) const {
    const auto found = std::ranges::find(numbers_, number);
    if (found == numbers_.end()) return nullptr;
    return &result_.alternatives[static_cast<size_t>(found - numbers_.begin())];
  }

  void add_best(size_t number) {
    const auto& kind = kinds_[number];
    const bool fits_already = std::ranges::any_of(result_.alternatives, [&](const StepPlan& plan) {
      return plan.lacking_bytes <= 0 && adds_offload(kind.settings, plan.settings);
    });
    if (kind.axes == AxesKind::none && fits_already) return;
    const bool overlaps = kind.settings.tensor_overlap;
    const auto* without = overlaps ? alternative(number - 1) : nullptr;
    // Passes that take turns need more memory.
    if (without && without->lacking_bytes > 0) return;
    std::optional<StepPlan> fastest, nearest;
    if (without && !visits_all()) fastest = with_overlap(*without);
    const auto all = settings_of(kind);
    // Among plans of equal time, keeps the one with the earlier axes, and then the one with fewer
    // devices.
    const auto limit = [](const std::optional<StepPlan>& known, const StepSettings& settings,
                          double value) {
      return !known || known->settings.axes == settings.axes ? up_to(value) : value;
    };
    for (const auto& settings : all) {
      const double known = fastest ? fastest->seconds : kNoTime;
      auto plan = fastest_estimate(settings, 0, limit(fastest, settings, known));
      if (plan) fastest = std::move(plan);
    }
    for (const auto& settings : all) {
      if (fastest || overlaps) break;
      const double known = nearest ? nearest->lacking_bytes : kNoTime;
      auto plan =
          least_lacking_stages(model_, settings, places(settings), limit(nearest, settings, known));
      if (plan) nearest = std::move(plan);
    }
    if (!fastest && !nearest) return;
    const auto& estimated = fastest ? *fastest : *nearest;
    const bool is_replicated = std::ranges::any_of(estimated.stages, [&](const StepStage& stage) {
      return estimated.settings.copies(stage.replicas) > 1;
    });
    if (kind.settings.zero_stage > 0 && !is_replicated) return;  // as without ZeRO
    const auto found = model_.price(estimated.settings, estimated.stages);
    if (fastest && (!result_.best || found.seconds < result_.best->seconds)) result_.best = found;
    least_lack_ = std::min(least_lack_, found.lacking_bytes);
    result_.alternatives.push_back(found);
    numbers_.push_back(number);
  }

  // Finds pipelines whose replay is faster than that of the best plan so far, though their
  // estimates are not.
  void replay_faster() {
    for (size_t number = 0; number < kinds_.size(); ++number) {
      if (!StepModel::is_replayed(kinds_[number].settings)) continue;
      for (const auto& settings : settings_of(kinds_[number])) {
        PipelineSearch search(model_, settings, some_, effort_);
        auto plan = search.fastest(0, result_.best->seconds);
        if (!plan) continue;
        put(number, *plan);
        result_.best = std::move(plan);
      }
    }
  }

  // Makes this plan the alternative of its kind.
  void put(size_t number, const StepPlan& plan) {
    const auto place = std::ranges::lower_bound(numbers_, number) - numbers_.begin();
    const auto index = static_cast<size_t>(place);
    if (index < numbers_.size() && numbers_[index] == number) {
      result_.alternatives[index] = plan;
      return;
    }
    numbers_.insert(numbers_.begin() + place, number);
    result_.alternatives.insert(result_.alternatives.begin() + place, plan);
  }

  void find_nearest() {
    for (const auto& kind : kinds_) {
      auto all = settings_of(kind);
      std::ranges::stable_sort(all, {}, &StepSettings::devices);
      for (const auto& settings : all) {
        const bool is_replayed = StepModel::is_replayed(settings);
        const double limit = result_.nearest ? result_.nearest->seconds : kNoTime;
        // An estimate is at most this many times the time of the replay.
        constexpr double kMostOfReplay = 1.3;
        const auto plan =
            fastest_estimate(settings, least_lack_, limit * (is_replayed ? kMostOfReplay : 1));
        if (plan) take_nearest(model_.price(settings, plan->stages));
        if (!is_replayed || !visits_all()) continue;
        PipelineSearch search(model_, settings, some_, effort_);
        const double known = result_.nearest ? result_.nearest->seconds : kNoTime;
        if (auto faster = search.fastest(least_lack_, known)) take_nearest(*std::move(faster));
      }
    }
  }
  void take_nearest(StepPlan plan) {
    if (!result_.nearest || plan.seconds < result_.nearest->seconds)
      result_.nearest = std::move(plan);
  }

  const StepModel& model_;
  const std::vector<size_t> some_, many_;  // places
  std::vector<Kind> kinds_;
  std::vector<size_t> numbers_;  // of the kinds of alternatives, ascending
  SearchEffort effort_{.left = kMostEffort};
  double least_lack_ = kNoTime;
  StepSearch result_;
};

}  // namespace

StepSearch search_steps(const StepModel& model) {
  return Alternatives(model).search();
}

}  // namespace troika::plan
