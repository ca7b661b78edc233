// Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), as in Hugging Face's Llama.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troika/nn/token_part.h"

namespace troika::nn {

// Dimension pair j of a head of size d turns by position * frequency_j, where frequency_j =
// theta^(-2 j / d), changed by `scaling`. Names are those of Hugging Face's `rope_type`:
//   default  unchanged
//   linear   divided by `factor` (Chen et al. 2023, arXiv 2306.15595)
//   llama3   divided by `factor` where a turn takes more than original_context / low_freq_factor
//            positions, unchanged where it takes fewer than original_context / high_freq_factor,
//            interpolated between (Llama 3.1)
struct RopeOptions {
  double theta = 10000;
  std::string scaling = "default";
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;
};

const std::vector<std::string>& rope_scalings();

// Throws Error(usage) for an unknown scaling, for numbers that are not above 0, and for
// high_freq_factor <= low_freq_factor with llama3.
void check_rope(const RopeOptions& options);

// Cosines and sines of these positions, [positions, size / 2] each. Computed in float32, as Hugging
// Face does, then converted to the type of `like`, on its device.
struct Rotation {
  at::Tensor cos;
  at::Tensor sin;
};
Rotation make_rotation(const RopeOptions& options, int64_t size,
                       const std::vector<Stretch>& positions, const at::Tensor& like);

// Returns heads [batch, length, heads, size] turned: element j and element j + size / 2 form a
// pair. The rotation has `length` positions.
at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation);

}  // namespace troika::nn
