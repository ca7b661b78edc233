// The pipeline of a plan.
#pragma once

#include "troika/comm/world/mesh_groups.h"
#include "troika/data/dataset.h"
#include "troika/layout/plan.h"
#include "troika/parallel/pipeline/pipeline_schedule.h"

namespace troika::train {

class Task;
struct TrainOptions;

// Whether the plan has a pipeline schedule. Its pipeline axis may have only one rank.
bool is_pipeline(const layout::Plan& plan);

// Returns options with the plan's schedule, cut and numbers. Precision, memory format and exchange
// are the defaults.
parallel::PipelineOptions pipeline_options(const layout::Plan& plan);

// Whether a rank computes outputs, losses and metrics: without a pipeline, every rank; with one,
// the ranks of the last stage and, of those that cut its layers over a tensor axis, the first.
bool computes_outputs(const layout::Plan& plan, int rank);
// Returns the group over which losses, metrics and logs are reduced: the ranks along the data axis
// or, with a pipeline, all ranks. Only ranks with computes_outputs() contribute.
const comm::Group& outputs_group(const comm::MeshGroups& groups);

// Returns the group over which the samples of each micro-batch are divided: the ranks along the
// data axis, or this rank alone (Mesh::sample_shares()).
comm::Group samples_group(const comm::MeshGroups& groups);

// Throws Error(usage) if the plan was found for a model with another number of parameters. Here and
// below, the errors name the place in trainer.plan, if it is set.
void require_same_model(const TrainOptions& options, const layout::Plan& plan, const Task& task);

// Throws Error(usage) like require_same_model(), and if the plan's cut names other blocks than
// those of the task's model, in one stage or in several, or if the plan is a pipeline whose
// schedule or mesh does not fit the model, or has a tensor or context axis over which the model
// cannot be cut (naming the block and both numbers), or if an option of the run cannot be combined
// with either. Does not communicate.
void require_plan_fits(const TrainOptions& options, const layout::Plan& plan, const Task& task);

// Throws Error(usage) if the plan has a context axis, or sequence parallelism and a tensor axis,
// that does not divide the tokens of the data set's first sample, before any communication. Expects
// a plan and a task that require_plan_fits() accepts.
void require_tokens_fit(const layout::Plan& plan, const Task& task, const data::Dataset& dataset);

}  // namespace troika::train
