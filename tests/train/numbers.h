// A data set whose samples are two equal numbers; the class is whether the number is odd.
#pragma once

#include "troika/compat/torch.h"
#include "troika/data/dataset.h"

namespace troika::train {

class Numbers : public data::Dataset {
 public:
  explicit Numbers(int64_t size = 8) : size_(size) {}
  int64_t size() const override { return size_; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto numbers = at::tensor(std::vector<int64_t>(indices.begin(), indices.end()));
    return {numbers.to(at::kFloat).unsqueeze(1) * at::ones({1, 2}), numbers % 2};
  }
  int64_t num_classes() const override { return 2; }
  std::vector<int64_t> input_shape() const override { return {2}; }

 private:
  const int64_t size_;
};

}  // namespace troika::train
