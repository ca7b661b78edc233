#include "troika/plan/search/pipeline_search.h"

#include <algorithm>

#include "troika/plan/search/step_order.h"

namespace troika::plan {

namespace {

// Sums of the same times in different orders may differ by rounding.
constexpr double kSumRounding = 1e-12;

}  // namespace

void PipelineBound::add(const StepModel& model, const StepSettings& settings, size_t begin,
                        int used, int previous, const StepStage& stage) {
  const auto pass = model.mean_pass(settings, begin, stage.end, used, stage.replicas);
  const bool splits = settings.family == StepFamily::zero_bubble;
  const double backward = pass.input + (splits ? 0 : pass.weight);
  const int count = model.micro_batches(settings.profile);
  const double own = (count + stage.replicas - 1) / stage.replicas;
  if (previous > 0) {
    const auto message =
        model.least_message(settings, begin, used - previous, previous, stage.replicas);
    if (previous == stage.replicas) {
      // All outputs for this stage, then the last micro-batch's passes and its gradient.
      worst_ = std::max(worst_, fill_ + own * message.flow + message.latency + pass.last_forward +
                                    backward + message.seconds() + drain_);
    }
    fill_ += message.seconds() + (settings.passes_together() - 1) * message.flow;
    drain_ += message.seconds();
  }
  worst_ = std::max({worst_, fill_ + own * pass.all() + model.exposed(settings, begin, used, stage),
                     fill_ + own * (pass.forward + backward) + drain_});
  fill_ += pass.first_forward;
  drain_ += backward;
}

double PipelineBound::seconds(const StepSettings& settings, const StepModel::Least& rest) const {
  const bool splits = settings.family == StepFamily::zero_bubble;
  const double passes = splits ? rest.whole : rest.latency + rest.steady;
  return std::max({worst_, fill_ + passes, fill_ + rest.latency + drain_});
}

PipelineSearch::PipelineSearch(const StepModel& model, const StepSettings& settings,
                               const std::vector<size_t>& places, SearchEffort& effort)
    : model_(model),
      settings_(settings),
      places_(places),
      effort_(effort),
      devices_(settings.groups()) {}

std::optional<StepPlan> PipelineSearch::fastest(double allowance, double limit) {
  allowance_ = allowance;
  limit_ = limit;
  best_.reset();
  extend({}, 0, 0);
  return std::move(best_);
}

// `place` is the number of places before the next stage.
void PipelineSearch::extend(const PipelineBound& bound, size_t place, int used) {
  const int left = devices_ - used;
  const bool is_even = model_.has_even_stages(settings_);
  const auto can_be_of_all = [&](int count) {
    return devices_ % count == 0 && model_.shares_evenly(settings_, count);
  };
  for (int count = 1; count <= left; ++count) {
    if (is_even && !(stages_.empty() ? can_be_of_all(count) : count == stages_.front().replicas)) {
      continue;
    }
    if (model_.problem().straight && count > 1) break;
    const bool is_last = count == left;
    if (is_last && stages_.empty()) continue;
    for (size_t next = is_last ? places_.size() : place + 1; next <= places_.size(); ++next) {
      if (effort_.is_exceeded()) return;
      if (!is_last && next == places_.size()) break;
      add_stage(bound, next, used, {places_[next - 1], count});
    }
  }
}

void PipelineSearch::add_stage(PipelineBound bound, size_t place, int used,
                               const StepStage& stage) {
  --effort_.left;
  const size_t begin = stages_.empty() ? 0 : stages_.back().end;
  const int previous = stages_.empty() ? 0 : stages_.back().replicas;
  const int left = devices_ - used - stage.replicas;
  bound.add(model_, settings_, begin, used, previous, stage);
  const auto rest = left > 0 ? model_.least(settings_, stage.end, left) : StepModel::Least{};
  if (bound.seconds(settings_, rest) * (1 - kSumRounding) >= limit_) return;
  const auto cost = model_.stage(settings_, begin, stage.end, used, stage.replicas);
  if (cost.lacking_bytes > allowance_) return;
  stages_.push_back(stage);
  if (left > 0) {
    extend(bound, place, used + stage.replicas);
  } else {
    price();
  }
  stages_.pop_back();
}

void PipelineSearch::price() {
  const int replicas = stages_.front().replicas;
  if (is_even(stages_) && !model_.shares_evenly(settings_, replicas)) return;
  constexpr int kPassesAndMessages = 4;
  effort_.left -= int64_t{kPassesAndMessages} * model_.micro_batches(settings_.profile) *
                  static_cast<int64_t>(stages_.size());
  auto plan = model_.price(settings_, stages_);
  if (plan.seconds >= limit_) return;
  limit_ = plan.seconds;
  best_ = std::move(plan);
}

}  // namespace troika::plan
