// Random models and clusters, and a search that tries every plan of Troika's cost model.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

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
  return problem;
}

// Computes the times of all plans, one after the other.
class AllPlans {
 public:
  explicit AllPlans(const StepModel& model) : model_(model) {
    const auto& problem = model.problem();
    for (const auto family :
         {StepFamily::one_stage, StepFamily::pipeline, StepFamily::pipeline_rows,
          StepFamily::zero_bubble, StepFamily::no_flushes}) {
      const bool flushes = family != StepFamily::no_flushes;
      if (!flushes && problem.weights == layout::StageWeights::synchronous) continue;
      if (family == StepFamily::zero_bubble && !problem.profiles[0].splits_backward) continue;
      for (const bool recompute : {false, true}) {
        for (int zero = 0; zero <= (family == StepFamily::one_stage ? 3
                                    : flushes                       ? 1
                                                                    : 0);
             ++zero) {
          for (int devices = 1; devices <= problem.cluster.ranks(); ++devices) {
            settings_ = {
                .recompute = recompute, .zero_stage = zero, .family = family, .devices = devices};
            add_stages({}, 0, devices);
          }
        }
      }
    }
  }

  double fastest = std::numeric_limits<double>::infinity();          // of those that fit
  double least_lack = std::numeric_limits<double>::infinity();       // of all
  double fastest_lacking = std::numeric_limits<double>::infinity();  // of those that lack least

 private:
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
    bool all_equal = true;
    for (const auto& stage : stages) {
      if (model_.problem().straight && stage.replicas > 1) return false;
      const bool is_equal = stage.replicas == stages.front().replicas;
      const bool may_differ = settings_.family == StepFamily::pipeline ||
                              (settings_.family == StepFamily::no_flushes &&
                               model_.problem().weights != layout::StageWeights::double_buffered);
      if (!may_differ && !is_equal) return false;
      all_equal = all_equal && is_equal;
    }
    return !all_equal || model_.shares_evenly(settings_.profile, stages.front().replicas);
  }
  void price(const std::vector<StepStage>& stages) {
    if (!is_allowed(stages)) return;
    const auto plan = model_.price(settings_, stages);
    if (plan.lacking_bytes <= 0 && plan.seconds < fastest) fastest = plan.seconds;
    if (plan.lacking_bytes < least_lack) {
      least_lack = plan.lacking_bytes;
      fastest_lacking = plan.seconds;
    } else if (plan.lacking_bytes == least_lack) {
      fastest_lacking = plan.seconds < fastest_lacking ? plan.seconds : fastest_lacking;
    }
  }

  const StepModel& model_;
  StepSettings settings_;
};

}  // namespace troika::plan
