// The mesh that the options of a pipeline give.
#pragma once

#include "troika/layout/mesh.h"
#include "troika/layout/plan.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns mesh.axes or, from mesh.pipeline and mesh.data, a mesh whose outermost axis is the
// pipeline axis, so that neighbouring ranks average gradients. `ranks` is the number of ranks; if
// it is 0 (unknown), an axis of size -1 has one rank. Throws Error(usage) for sizes that do not fit
// the ranks, if both ways are used, and where Mesh::parse() does.
layout::Mesh pipeline_mesh(const TrainOptions& options, int ranks);

// Throws Error(usage) if options of pipelines are set, which the plan would
// ignore. `strategy` is the strategy's name.
void refuse_ignored_pipeline_options(const layout::Plan& plan, const TrainOptions& options,
                                     const char* strategy);

}  // namespace troika::train
