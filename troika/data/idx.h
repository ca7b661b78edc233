// The IDX files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist): big-endian magic
// number and sizes, then bytes. Plain or gzip.
#pragma once

#include <filesystem>

#include "troika/data/image_dataset.h"

namespace troika::data {

// Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, each with or without .gz, from
// `folder`: the first `limit` images (0: all), at most. There are as many classes as the largest
// *training* label tells. Throws Error(usage) naming the file that is missing, truncated or wrong.
Images read_idx(const std::filesystem::path& folder, Split split, int64_t limit = 0);

// MNIST's statistics; a small crop and no mirror, which would make other digits.
Normalisation idx_normalisation();
inline constexpr Augmentation kIdxAugmentation{.crop_padding = 2, .mirror = false};

}  // namespace troika::data
