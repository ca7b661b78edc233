#include "troika/data/subset.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"

namespace troika::data {
namespace {

// The target of a sample is its index, and its input the augmentation's seed.
class Indices : public Dataset {
 public:
  int64_t size() const override { return 11; }
  Batch load(std::span<const int64_t> indices, std::optional<uint64_t> seed) const override {
    const auto count = static_cast<int64_t>(indices.size());
    return {at::full({count}, static_cast<int64_t>(seed.value_or(0)), at::kLong),
            at::tensor(std::vector<int64_t>(indices.begin(), indices.end()))};
  }
  int64_t num_classes() const override { return 7; }
  std::vector<int64_t> input_shape() const override { return {3}; }
};

TEST(Subset, HasEachSampleOnce) {
  Indices whole;
  whole.set_name("indices");
  const std::vector<std::vector<int64_t>> expected{{0, 3, 6}, {1, 4, 7}, {2, 5, 8}};
  for (int64_t part = 0; part < 3; ++part) {
    const Subset subset(whole, part, 3);
    ASSERT_EQ(subset.size(), 3) << "9 and 10 are of an incomplete round";
    const auto batch = subset.load(std::vector<int64_t>{0, 1, 2}, 5);
    const auto& own = expected[static_cast<size_t>(part)];
    EXPECT_TRUE(batch.targets.equal(at::tensor(own)));
    EXPECT_TRUE(batch.inputs.eq(5).all().item<bool>());
    EXPECT_EQ(batch.samples, own);
    EXPECT_EQ(subset.num_classes(), 7);
    EXPECT_EQ(subset.input_shape(), (std::vector<int64_t>{3}));
    EXPECT_EQ(subset.name(), "indices");
  }
}

TEST(Subset, PartsAreNumbered) {
  const Indices whole;
  EXPECT_ERROR(Subset(whole, 3, 3), ErrorKind::usage,
               "[data] a part of a data set; got number 3 of 3, expected a number from 0 to below "
               "the number of parts");
}

}  // namespace
}  // namespace troika::data
