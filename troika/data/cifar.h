// CIFAR-10 and CIFAR-100 in their binary layout (https://www.cs.toronto.edu/~kriz/cifar.html): a
// record is its label bytes, then 32 x 32 pixels of red, of green, of blue.
#pragma once

#include <filesystem>

#include "troika/data/image_dataset.h"

namespace troika::data {

// The first `limit` records (0: all) of the split's files in `folder`, at most.
//
// CIFAR-10 reads those of data_batch_1.bin .. data_batch_5.bin that exist, in this order, or
// test_batch.bin; CIFAR-100 reads train.bin or test.bin and keeps the fine labels.
// Throws Error(usage) naming the file that is missing, short or has a label out of range.
Images read_cifar10(const std::filesystem::path& folder, Split split, int64_t limit = 0);
Images read_cifar100(const std::filesystem::path& folder, Split split, int64_t limit = 0);

// Statistics of the training pixels and the customary augmentation: crop from 4 pixels of padding,
// and mirror.
Normalisation cifar10_normalisation();
Normalisation cifar100_normalisation();
inline constexpr Augmentation kCifarAugmentation{.crop_padding = 4, .mirror = true};

}  // namespace troika::data
