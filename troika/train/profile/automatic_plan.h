// Finds the plan of a run by measurement: profiles the configured model, and searches.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/plan/search/step_search.h"
#include "troika/train/options/options.h"
#include "troika/train/profile/offload_times.h"

namespace troika::train {

struct AutomaticPlanOptions {
  double seconds = 2;  // for the passes of each profile
  // The precisions that the plan may have, in decreasing order of preference. Empty:
  // trainer.precision, and lower ones if the whole model does not fit with it.
  std::vector<std::string> precisions = {};
  // The limit of a rank. Nothing: its share of the memory that is available on this machine.
  std::optional<double> memory_bytes = {};
  // Whether plans with a tensor axis are considered.
  bool cuts_layers = true;
  // The hosts, devices and links of the ranks, and spare hosts for summation servers. Nothing: as
  // measured; those of launched servers are spare.
  std::optional<layout::Cluster> cluster = {};
  // ProfileOptions::block_by_block, also where the whole model fits.
  bool block_by_block = false;
};

struct AutomaticPlan {
  plan::StepModel model;
  plan::StepSearch found;
  OffloadTargets offload = {};
  // The savers that were considered because the whole model does not fit without them.
  std::vector<std::string> forced = {};

  // The fastest plan that fits, otherwise the nearest one.
  const plan::StepPlan& chosen() const { return found.best ? *found.best : *found.nearest; }
  // The stage of the chosen plan that a rank has.
  size_t stage_of(int rank) const;
};

// Measures profiles of the model (measure_profile()) with micro-batches of one to three sizes, and
// searches for the fastest plan, or the simplest one that is at most 3 % slower, of the optimizer
// step that `options` describe on the ranks of the group: the same samples in a step, and the same
// optimizer. Considers only plans that the trainer can run on all ranks (require_runnable()). If
// servers were launched beside the ranks, only plans with summation servers are considered. If
// no plan without a cut fits with the configured precision, the search also considers the lower
// precisions that the device supports, unless `asked` names precisions, and offload. A model of
// which no step fits in a rank's memory is measured block by block, and then without offload.
//
// The memory of plans without a cut, and of a pipeline or a plan with a tensor axis before it is
// chosen, is that of MemoryPredictor. Without trainer.memory_check=off, the memory of a rank is
// limited.
//
// The result is the same on all ranks. Collective; blocks. Throws the errors of measure_profile(),
// and Error(usage) for options with features that the search does not know: replicas in threads,
// steps without an exchange of gradients, compressed gradients, and momentum or other sums inside
// machines than plain ones at summation servers; for an unknown precision; for a cluster of other
// ranks or servers than those of the run; and if a block, which must be measured, does not fit in
// the memory of a rank.
AutomaticPlan find_plan(const TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group, const AutomaticPlanOptions& asked = {});

// Returns the options with the plan that was found: trainer.plan, the options that it decides
// (with_plan()), and data.global_batch_size, the samples of a micro-batch over all replicas. Throws
// Error(usage) if no plan fits.
TrainOptions with_found_plan(TrainOptions options, const AutomaticPlan& plan,
                             const comm::Group& group);

}  // namespace troika::train
