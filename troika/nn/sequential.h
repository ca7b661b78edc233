// A torch::nn::Sequential as a model: one block for each of its modules.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <memory>

#include "troika/nn/model.h"

namespace troika::nn {

// Makes a model that shares the modules and keeps their names, so parameters have the same names as
// in the Sequential. Each module must map one tensor to one tensor. Masks of torch::nn::Dropout are
// made by nn::dropout() (dropout.h).
std::shared_ptr<Model> from_sequential(const torch::nn::Sequential& sequential);

}  // namespace troika::nn
