// Stages and schedules of pipelines by measured times.
#pragma once

#include <string>
#include <vector>

#include "troika/layout/plan.h"
#include "troika/layout/schedules/replay.h"
#include "troika/train/tuning/start.h"

namespace troika::train {

class Task;

// Returns the seconds of each block's passes on a micro-batch. Runs micro-batches through the
// blocks (BlockTimes), once to warm up and then three times, while the other ranks do the same;
// takes the minimum on each rank and the mean over the ranks, so that all get the same times.
// Leaves parameters and buffers as they are, and gradients undefined. Called by all ranks; blocks.
std::vector<layout::StageTimes> measure_block_times(const RunStart& run, Task& task);

// Returns the plan with the choices that depend on the model: the cut that pipeline.cut_by asks
// for, the actions of schedule `auto` (plan/automatic.h), and, with a budget for recomputation, the
// policies of the stages (MemoryPredictor::recompute_of_stages()), which rank 0 predicts. Times are
// measured now or, for a model of Troika's, taken from the user's file if they were measured
// before; a run that resumes takes the actions of the checkpoint if these are for as many ranks and
// micro-batches. Returns any other plan unchanged. Logs the choices on rank 0. Called by all ranks,
// with the same result on all; blocks. Throws Error(usage) where plan::automatic_schedule() and
// recompute_of_stages() do, and for a budget on GPUs or with a plan whose memory is not predicted.
layout::Plan tuned_pipeline(layout::Plan plan, const RunStart& run, Task& task);

// Whether tuned_pipeline() chooses something by measured times.
bool is_cut_by_times(const TrainOptions& options, const layout::Plan& plan);

}  // namespace troika::train
