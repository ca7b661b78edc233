// Finds the plan of a run by measurement: profiles the configured model, and searches.
#pragma once

#include <cstddef>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/plan/search/step_search.h"
#include "troika/train/options/options.h"

namespace troika::train {

struct AutomaticPlan {
  plan::StepModel model;
  plan::StepSearch found;

  // The fastest plan that fits, otherwise the nearest one.
  const plan::StepPlan& chosen() const { return found.best ? *found.best : *found.nearest; }
  // The stage of the chosen plan that a rank has.
  size_t stage_of(int rank) const;
};

// Measures profiles of the model (measure_profile()) with micro-batches of one to three sizes, and
// searches for the fastest plan, or the simplest one that is at most 3 % slower, of the optimizer
// step that `options` describe on the ranks of the group: the same samples in a step, the same
// optimizer and precision. Considers only plans that the trainer can run on all ranks
// (require_runnable()). The memory of plans without a cut is that of MemoryPredictor. Without
// trainer.memory_check=off, a rank may take its share of the memory that is available on this
// machine. `seconds` are for the passes of each profile.
//
// The result is the same on all ranks. Collective; blocks. Throws the errors of measure_profile(),
// and Error(usage) for options with features that the search does not know: replicas in threads,
// steps without an exchange of gradients, and compressed gradients.
AutomaticPlan find_plan(const TrainOptions& options, const data::Dataset& dataset,
                        const comm::Group& group, double seconds);

// Returns the options with the plan that was found: trainer.plan, and data.global_batch_size, the
// samples of a micro-batch over all replicas. Throws Error(usage) if no plan fits.
TrainOptions with_found_plan(TrainOptions options, const AutomaticPlan& plan,
                             const comm::Group& group);

}  // namespace troika::train
