// The meshes that the options of pipelines and of tensor axes give.
#pragma once

#include "troika/layout/mesh.h"
#include "troika/layout/plan.h"
#include "troika/layout/plan_places.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Returns mesh.axes or, from mesh.pipeline and mesh.data, a mesh whose outermost axis is the
// pipeline axis, so that neighbouring ranks average gradients. `ranks` is the number of ranks; if
// it is 0 (unknown), an axis of size -1 has one rank. Throws Error(usage) for sizes that do not fit
// the ranks, if both ways are used, and where Mesh::parse() does.
layout::Mesh pipeline_mesh(const TrainOptions& options, int ranks);

// The same from mesh.tensor and mesh.data, for a mesh whose innermost axis is the tensor axis, so
// that neighbouring ranks, which are on one machine if possible, compute layers together.
// With mesh.context, a context axis lies around the tensor axis.
layout::Mesh tensor_mesh(const TrainOptions& options, int ranks);

// The same from mesh.context and mesh.data, for a mesh whose innermost axis is the context axis.
layout::Mesh context_mesh(const TrainOptions& options, int ranks);

// The same from mesh.pipeline, mesh.data, mesh.context and mesh.tensor, for a mesh with these axes
// in this order. Without mesh.context, there is no context axis.
// One of them of size -1 has the ranks that the others leave. If several are -1, the data axis must
// be one of them: it has these ranks, and the other axes have one.
layout::Mesh three_axes_mesh(const TrainOptions& options, int ranks);

// The same for replicas that train by themselves, each of which has one rank or is a mesh of ranks:
// the outermost axis is the data axis, of replicas. Throws Error(usage) for ZeRO, and for stages of
// different numbers of ranks.
layout::Mesh replicas_mesh(const TrainOptions& options, int ranks);

// Throws Error(usage) if options of pipelines or of tensor axes are set, which the plan would
// ignore. `strategy` is the strategy's name.
void refuse_ignored_mesh_options(const layout::Plan& plan, const TrainOptions& options,
                                 const char* strategy);

// Throws Error(usage) if the plan's mesh has an axis that cannot be run, or a tensor or context
// axis beside something that it does not combine with, such as stages of different numbers of
// replicas; the error names it, and its place in the text of the plan.
void require_runnable_axes(const layout::Plan& plan, const layout::PlanPlaces& places);

// Throws Error(usage) if the plan of a pipeline has local steps, parameter servers, compressed
// gradients or threads.
void require_runnable_pipeline(const layout::Plan& plan, const layout::PlanPlaces& places);

}  // namespace troika::train
