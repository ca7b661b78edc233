// Random models and clusters, and a search that tries every plan of Troika's cost model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/plan/search/pipeline_search.h"
#include "troika/plan/search/step_search.h"

namespace troika::plan {

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed * 2 + 1) {}
  int from(int least, int most) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return least + static_cast<int>((state_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t state_;
};

// Returns a chain of at most 8 blocks and at most 4 devices. The devices may be on several hosts
// and may differ; there may be a memory limit.
inline StepProblem random_problem(Draws& draws) {
  StepProblem problem;
  layout::Profile profile{.device_flops = 4,
                          .splits_backward = draws.from(0, 1) == 0,
                          .optimizer_factor = draws.from(0, 2) * 1.0};
  const int blocks = draws.from(1, 8);
  for (int i = 0; i < blocks; ++i) {
    profile.blocks.push_back({.name = std::to_string(i),
                              .forward = draws.from(0, 9) * 1.0,
                              .backward_input = draws.from(0, 9) * 1.0,
                              .backward_weight = draws.from(0, 9) * 1.0,
                              .spread = draws.from(0, 3) * 0.05,
                              .output_bytes = draws.from(0, 9) * 1.0,
                              .saved_bytes = draws.from(0, 20) * 1.0,
                              .parameter_bytes = draws.from(0, 30) * 1.0,
                              .workspace_bytes = draws.from(0, 5) * 1.0});
  }
  problem.profiles.push_back(profile);
  const int devices = draws.from(1, 4);
  for (int i = 0; i < devices; ++i) {
    const int host = draws.from(0, i > 0 ? 1 : 0);
    const auto known = static_cast<int>(problem.cluster.hosts.size());
    const int chosen = host < known ? host : known;
    if (chosen == known) problem.cluster.hosts.push_back(std::to_string(known));
    problem.cluster.devices.push_back(
        {.host = chosen,
         .group = draws.from(0, 1),
         .memory_bytes = draws.from(0, 2) == 0 ? 0 : draws.from(60, 500),
         .flops = draws.from(3, 5) * 1.0});
  }
  problem.cluster.group = {draws.from(0, 2) * 0.1, draws.from(1, 30) * 1.0};
  problem.cluster.host = {draws.from(0, 2) * 0.2, draws.from(1, 20) * 1.0};
  problem.cluster.network = {draws.from(0, 2) * 0.5, draws.from(1, 10) * 1.0};
  problem.global_batch = draws.from(1, 12);
  if (draws.from(0, 1) == 0) problem.memory_bytes = draws.from(20, 400);
  problem.straight = draws.from(0, 5) == 0;
  problem.weights =
      std::array{layout::StageWeights::synchronous, layout::StageWeights::stashed,
                 layout::StageWeights::vertical_sync,
                 layout::StageWeights::double_buffered}[static_cast<size_t>(draws.from(0, 3))];
  problem.profiles[0].blocks.back().has_output_layer = draws.from(0, 1) == 0;
  return problem;
}

// Makes a context axis cut most of the blocks.
inline void add_tokens(std::vector<layout::ProfiledBlock>& blocks, Draws& draws) {
  constexpr std::array kTokens{0, 4, 8, 16, 24, 24};
  for (auto& block : blocks) {
    if (draws.from(0, 5) == 0) continue;
    block.context = layout::ContextCut{.tokens = kTokens[static_cast<size_t>(draws.from(0, 5))],
                                       .time_share = draws.from(5, 10) * 0.1,
                                       .workspace_share = draws.from(0, 10) * 0.1,
                                       .saved_bytes = block.saved_bytes * draws.from(5, 10) * 0.1,
                                       .attention_share = draws.from(0, 10) * 0.1,
                                       .pair_bytes = draws.from(0, 9) * 0.5,
                                       .pair_gradient_bytes = draws.from(0, 9) * 0.5};
  }
}

// Returns the problem with at most 4 blocks, most of which a tensor axis can cut, with
// `cuts_tokens` a context axis, too, and an even number of devices, mostly in pairs on one host.
// Some of the problems still have no such axes.
inline StepProblem with_cuts(StepProblem problem, Draws& draws, bool cuts_tokens = false) {
  problem.cuts_layers = true;
  constexpr std::array kUnits{0, 2, 4, 4, 6, 12, 12, 12};
  auto& blocks = problem.profiles[0].blocks;
  blocks.resize(std::min<size_t>(blocks.size(), 4));
  Draws shares = draws;
  for (auto& block : blocks) {
    if (draws.from(0, 5) == 0) continue;
    block.tensor = layout::TensorCut{.units = kUnits[static_cast<size_t>(draws.from(0, 7))],
                                     .tokens = draws.from(0, 9) == 0 ? 3 : 12,
                                     .time_share = draws.from(4, 7) * 0.1,
                                     .parameter_share = draws.from(0, 10) * 0.1,
                                     .saved_share = draws.from(0, 5) * 0.1,
                                     .token_time_share = draws.from(0, 3) * 0.1,
                                     .token_saved_share = draws.from(0, 5) * 0.1,
                                     .cuts_output = draws.from(0, 3) == 0,
                                     .forward_sums = draws.from(0, 2),
                                     .backward_sums = draws.from(0, 2),
                                     .backward_gathers = draws.from(0, 2),
                                     .sum_bytes = draws.from(0, 9) * 0.5,
                                     .weight_share_beside_sums = shares.from(0, 4) * 0.25,
                                     .input_share_beside_gathers = shares.from(0, 4) * 0.25};
  }
  if (cuts_tokens) add_tokens(blocks, draws);
  auto& devices = problem.cluster.devices;
  if (devices.size() % 2 == 1) devices.push_back(devices.back());
  for (size_t i = 1; i < devices.size(); i += 2) {
    if (draws.from(0, 3) > 0) devices[i].host = devices[i - 1].host;
  }
  return problem;
}

// Whether the cuts of all blocks allow a context axis of so many ranks.
inline bool may_have_context(const StepProblem& problem, int ranks) {
  bool is_cut = false, has_tokens = false;
  for (const auto& block : problem.profiles[0].blocks) {
    if (!block.context) continue;
    is_cut = true;
    has_tokens = has_tokens || block.context->tokens > 0;
    if (block.context->tokens % (2 * ranks) != 0) return false;
  }
  return is_cut && (has_tokens || ranks != 3);
}

// Whether a plan may have these axes: the cuts of all blocks allow them, and each group is on one
// host.
inline bool may_have(const StepProblem& problem, const BlockAxes& axis) {
  const auto& cluster = problem.cluster;
  if (axis.ranks() == 1) return !axis.sequence;
  if (!problem.cuts_layers || problem.straight || cluster.ranks() % axis.ranks() != 0) return false;
  for (int rank = 0; rank < cluster.ranks(); ++rank) {
    const int first = rank / axis.ranks() * axis.ranks();
    if (cluster.devices_of(rank).host != cluster.devices_of(first).host) return false;
  }
  if (axis.context > 1 && !may_have_context(problem, axis.context)) return false;
  if (axis.tensor == 1) return !axis.sequence;
  bool is_cut = false, has_units = false, gains = false;
  for (const auto& block : problem.profiles[0].blocks) {
    if (!block.tensor) continue;
    is_cut = true;
    has_units = has_units || block.tensor->units > 0;
    gains = gains || block.tensor->token_time_share > 0 || block.tensor->token_saved_share > 0;
    if (block.tensor->units % axis.tensor != 0) return false;
    const int tokens = block.tensor->tokens / (block.context ? axis.context : 1);
    if (axis.sequence && tokens % axis.tensor != 0) return false;
  }
  return is_cut && (gains || !axis.sequence) && (has_units || axis.tensor != 3);
}

// Returns the lower bound on the time of a pipeline.
inline double bound_of(const StepModel& model, const StepPlan& plan) {
  PipelineBound bound;
  size_t begin = 0;
  int used = 0, previous = 0;
  for (const auto& stage : plan.stages) {
    bound.add(model, plan.settings, begin, used, previous, stage);
    begin = stage.end;
    used += stage.replicas;
    previous = stage.replicas;
  }
  return bound.seconds(plan.settings, {});
}

// Computes the times of all plans, one after the other.
class AllPlans {
 public:
  explicit AllPlans(const StepModel& model) : model_(model) {
    const auto& problem = model.problem();
    for (const auto family :
         {StepFamily::one_stage, StepFamily::pipeline, StepFamily::pipeline_rows,
          StepFamily::zero_bubble, StepFamily::gpipe, StepFamily::no_flushes}) {
      const bool flushes = family != StepFamily::no_flushes;
      if (!flushes && problem.weights == layout::StageWeights::synchronous) continue;
      if (family == StepFamily::zero_bubble && !problem.profiles[0].splits_backward) continue;
      for (const bool recompute : {false, true}) {
        for (int zero = 0; zero <= (family == StepFamily::one_stage ? 3
                                    : flushes                       ? 1
                                                                    : 0);
             ++zero) {
          settings_ = {.recompute = recompute, .zero_stage = zero, .family = family};
          add_axes();
          settings_.tensor_overlap = true;
          add_axes();
        }
      }
    }
  }

  double fastest = std::numeric_limits<double>::infinity();  // of those that fit
  BlockAxes axis_of_fastest = {};
  bool fastest_overlaps = false;
  double least_lack = std::numeric_limits<double>::infinity();       // of all
  double fastest_lacking = std::numeric_limits<double>::infinity();  // of those that lack least

  // Whether the plan of the least estimate is slower than the fastest one.
  bool replays_decide() const { return estimated_ > fastest * (1 + 1e-9); }

 private:
  void add_axes() {
    const int all = model_.problem().cluster.ranks();
    for (int context = 1; context <= all; ++context) {
      for (int tensor = 1; tensor * context <= all; ++tensor) {
        for (const bool sequence : {false, true}) add_groups({tensor, sequence, context});
      }
    }
  }
  void add_groups(const BlockAxes& axes) {
    settings_.axes = axes;
    if (!may_have(model_.problem(), axes)) return;
    const bool is_combined =
        settings_.zero_stage <= 1 && settings_.family != StepFamily::no_flushes;
    if (axes.ranks() > 1 && !is_combined) return;
    if (settings_.tensor_overlap && (axes.tensor == 1 || axes.context > 1)) return;
    const int most = model_.problem().cluster.ranks() / axes.ranks();
    for (int groups = 1; groups <= most; ++groups) {
      settings_.devices = groups * axes.ranks();
      if (const auto& allows = model_.problem().allows; allows && !allows(settings_, false))
        continue;
      add_stages({}, 0, groups);
    }
  }
  void add_stages(std::vector<StepStage> stages, size_t begin, int left) {
    if (begin == model_.blocks() && left == 0) return price(stages);
    for (size_t end = begin + 1; end <= model_.blocks(); ++end) {
      for (int replicas = 1; replicas <= left; ++replicas) {
        auto longer = stages;
        longer.push_back({end, replicas});
        add_stages(longer, end, left - replicas);
      }
    }
  }
  bool is_allowed(const std::vector<StepStage>& stages) const {
    const bool is_one = stages.size() == 1;
    if (is_one != (settings_.family == StepFamily::one_stage)) return false;
    // Nobody would share the states of this stage.
    const bool has_copies = settings_.copies(stages.front().replicas) > 1;
    if (is_one && settings_.has_stages() && !has_copies) return false;
    bool all_equal = true;
    for (const auto& stage : stages) {
      if (model_.problem().straight && stage.replicas > 1) return false;
      const bool is_equal = stage.replicas == stages.front().replicas;
      const bool may_differ = settings_.axes.ranks() == 1 &&
                              (settings_.family == StepFamily::pipeline ||
                               (settings_.family == StepFamily::no_flushes &&
                                model_.problem().weights != layout::StageWeights::double_buffered));
      if (!may_differ && !is_equal) return false;
      all_equal = all_equal && is_equal;
    }
    return !all_equal || model_.shares_evenly(settings_, stages.front().replicas);
  }
  void price(const std::vector<StepStage>& stages) {
    if (!is_allowed(stages)) return;
    auto plan = model_.estimate(settings_, stages);
    const double estimate = plan.seconds;
    if (StepModel::is_replayed(settings_)) {
      // Replays take long, so only those that may matter.
      const double least = bound_of(model_, plan);
      const bool is_fast = plan.lacking_bytes <= 0 && least < fastest;
      const bool is_near = plan.lacking_bytes < least_lack ||
                           (plan.lacking_bytes == least_lack && least < fastest_lacking);
      if (!is_fast && !is_near) return;
      plan = model_.price(settings_, stages);
    }
    if (plan.lacking_bytes <= 0 && estimate < least_estimate_) {
      least_estimate_ = estimate;
      estimated_ = plan.seconds;
    }
    if (plan.lacking_bytes <= 0 && plan.seconds < fastest) {
      fastest = plan.seconds;
      axis_of_fastest = settings_.axes;
      fastest_overlaps = settings_.tensor_overlap;
    }
    if (plan.lacking_bytes < least_lack) {
      least_lack = plan.lacking_bytes;
      fastest_lacking = plan.seconds;
    } else if (plan.lacking_bytes == least_lack) {
      fastest_lacking = plan.seconds < fastest_lacking ? plan.seconds : fastest_lacking;
    }
  }

  const StepModel& model_;
  StepSettings settings_;
  double least_estimate_ = std::numeric_limits<double>::infinity();
  double estimated_ = std::numeric_limits<double>::infinity();  // the time of its plan
};

// Compares the search with all plans. Returns whether one fits.
inline bool is_the_least(const StepModel& model, const StepSearch& found, const AllPlans& all) {
  const bool fits = all.fastest < 1e300;
  EXPECT_EQ(found.best.has_value(), fits);
  EXPECT_EQ(found.nearest.has_value(), !fits);
  EXPECT_TRUE(found.is_exact);
  const auto& plan = fits ? *found.best : *found.nearest;
  EXPECT_NEAR(plan.seconds, fits ? all.fastest : all.fastest_lacking, 1e-9 * (1 + plan.seconds));
  if (!fits) {
    EXPECT_NEAR(plan.lacking_bytes, all.least_lack, 1e-9);
  }
  EXPECT_LE(found.lower_bound, plan.seconds * (1 + 1e-9));
  EXPECT_LE(model.lower_bound(), plan.seconds * (1 + 1e-9));
  return fits;
}

}  // namespace troika::plan
