// A part of a data set.
#pragma once

#include "troika/data/dataset.h"

namespace troika::data {

// The samples whose index is `part` modulo `parts`, without those of the last incomplete round: all
// parts have equally many. Samples keep the augmentation and the numbers (Batch::samples) that they
// have in `whole`, which must outlive this object. Throws Error(usage) unless 0 <= part < parts.
class Subset : public Dataset {
 public:
  Subset(const Dataset& whole, int64_t part, int64_t parts);

  int64_t size() const override { return whole_.size() / parts_; }
  Batch load(std::span<const int64_t> indices,
             std::optional<uint64_t> augmentation_seed) const override;
  int64_t num_classes() const override { return whole_.num_classes(); }
  std::vector<int64_t> input_shape() const override { return whole_.input_shape(); }
  std::vector<int64_t> target_shape() const override { return whole_.target_shape(); }

 private:
  const Dataset& whole_;
  const int64_t part_, parts_;
};

}  // namespace troika::data
