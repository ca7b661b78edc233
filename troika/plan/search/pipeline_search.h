// The search for the fastest pipeline by the times of replays.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/plan/search/step_model.h"

namespace troika::plan {

// A lower bound on StepModel::price() of a pipeline that is_replayed(), stage by stage. A stage
// begins after the first micro-batch has passed the stages before it, computes all of its passes,
// and the last gradient then goes back to the first stage. The messages between two stages take
// place one after the other.
class PipelineBound {
 public:
  // Adds a stage with blocks [begin, end) after stages on `used` devices, the last of which has
  // `previous` replicas (0: none).
  void add(const StepModel& model, const StepSettings& settings, size_t begin, int used,
           int previous, const StepStage& stage);
  // Returns the bound on pipelines that begin with the added stages, for the least cost of the
  // others.
  double seconds(const StepSettings& settings, const StepModel::Least& rest) const;

 private:
  double fill_ = 0;   // until the first output of the last stage
  double drain_ = 0;  // from the last gradient's arrival at the last stage
  double worst_ = 0;
};

// The work that searches may still do, in visited stages and replayed passes.
struct SearchEffort {
  int64_t left = 0;
  bool is_exceeded() const { return left < 0; }
};

// Visits all pipelines with these settings except those that PipelineBound or the memory excludes.
class PipelineSearch {
 public:
  // `places` are the ends of blocks at which a stage may end, ascending. All must outlive it.
  PipelineSearch(const StepModel& model, const StepSettings& settings,
                 const std::vector<size_t>& places, SearchEffort& effort);

  // Returns the fastest plan of less than `limit` seconds whose stages lack at most `allowance`
  // bytes; of those that were visited, if the effort does not suffice for all.
  std::optional<StepPlan> fastest(double allowance, double limit);

 private:
  void extend(const PipelineBound& bound, size_t place, int used);
  void add_stage(PipelineBound bound, size_t place, int used, const StepStage& stage);
  void price();

  const StepModel& model_;
  const StepSettings settings_;
  const std::vector<size_t>& places_;
  SearchEffort& effort_;
  const int devices_;  // or groups of devices on tensor axes
  double allowance_ = 0, limit_ = 0;
  std::vector<StepStage> stages_;
  std::optional<StepPlan> best_;
};

}  // namespace troika::plan
