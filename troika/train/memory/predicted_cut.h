// Cuts of a model into stages by predicted amounts.
#pragma once

#include <cstdint>
#include <string>

#include "troika/data/dataset.h"
#include "troika/layout/plan.h"
#include "troika/nn/precision.h"
#include "troika/optim/options.h"
#include "troika/train/options/options.h"

namespace troika::train {

class Task;

// Returns the layout string of the cut that pipeline.cut_by asks for, for micro-batches of `batch`
// samples: flops, from the products of each block; bytes, from parameters, their gradients and
// states of the optimizer, and the activations that the plan's schedule keeps. Empty if the plan
// has a cut, if it is not a pipeline, or if stages are cut by something else. Runs a forward and
// backward pass on tensors without memory. Throws the errors of parallel::passes_for().
std::string predicted_cut(const TrainOptions& options, const layout::Plan& plan, const Task& task,
                          const data::Dataset& dataset, int64_t batch);

// The bytes of an optimizer's states for one element of a parameter, with float32 masters if the
// precision needs them. Needs compat::count_tensor_memory().
double optimizer_bytes_each(const optim::OptimizerOptions& options,
                            const nn::NumericPrecision& precision);

}  // namespace troika::train
