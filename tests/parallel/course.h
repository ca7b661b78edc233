// The course of a small training run on a group, to be held against the course of one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace troika::parallel {

struct Course {
  std::vector<double> losses;       // of each step, over the global batch
  std::vector<at::Tensor> weights;  // after the last
};

// 20 steps of `model` ("mlp", "conv" or "gpt") by `optimizer` ("sgd" or "adamw") on global batches
// of 84 samples, of which each rank takes its contiguous share. Expects the ranks to hold the same
// bits after every step. Buckets are small, so that there are several.
Course train(comm::Group group, const std::string& model, const std::string& optimizer,
             at::ScalarType type);

// Expects equal losses and weights, up to `tolerance` relative to the largest value.
void expect_equal(const Course& course, const Course& oracle, double tolerance);

}  // namespace troika::parallel
