// The sizes of a configured model, which takes no memory for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "troika/nn/zoo.h"

namespace troika::train {

struct ModelSizes {
  size_t blocks = 0;
  int64_t parameters = 0;  // their number
};

// Throws the errors of nn::make_model().
ModelSizes model_sizes(const nn::ModelOptions& options);

}  // namespace troika::train
