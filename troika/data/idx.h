// The IDX files of MNIST and related sets (http://yann.lecun.com/exdb/mnist): big-endian magic
// number and sizes, then bytes. Plain or gzip.
#pragma once

#include <filesystem>

#include "troika/data/image_dataset.h"

namespace troika::data {

// Reads at most the first `limit` images (0: all) from {train,t10k}-images-idx3-ubyte and
// -labels-idx1-ubyte in `folder`, each with or without .gz. The number of classes is the largest
// *training* label + 1. Throws Error(usage) naming a file that is missing, truncated or wrong.
Images read_idx(const std::filesystem::path& folder, Split split, int64_t limit = 0);

// MNIST's statistics; a small crop and no mirror, since mirrored digits are wrong.
Normalisation idx_normalisation();
inline constexpr Augmentation kIdxAugmentation{.crop_padding = 2, .mirror = false};

}  // namespace troika::data
