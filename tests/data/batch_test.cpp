#include "troika/data/batch.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/data/loader.h"

namespace troika::data {
namespace {

Batch make_batch(int64_t samples) {
  const auto numbers = at::arange(samples, at::kFloat);
  return {numbers.view({-1, 1}), {}, {{"mask", numbers.gt(1)}, {"weight", numbers * 2}}};
}

TEST(Batch, GivesItsTensorsByName) {
  const auto batch = make_batch(3);
  EXPECT_TRUE(batch["inputs"].equal(batch.inputs));
  EXPECT_EQ(batch["weight"][2].item<float>(), 4);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.tensors()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"inputs", "mask", "weight"}));
}

TEST(Batch, SaysWhichTensorsThereAre) {
  EXPECT_ERROR(make_batch(3)["wieght"], ErrorKind::usage,
               "[data] the batch has no tensor `wieght`; got inputs, mask, weight (the data "
               "set's load() fills a batch)");
  EXPECT_ERROR(make_batch(3)["targets"], ErrorKind::usage,
               "[data] the batch has no tensor `targets`; got inputs, mask, weight (the data "
               "set's load() fills a batch)");
  EXPECT_ERROR(Batch()["inputs"], ErrorKind::usage,
               "[data] the batch has no tensor `inputs`; got no tensor (the data set's load() "
               "fills a batch)");
}

TEST(Batch, HasTheSizeOfWhateverIsThere) {
  auto batch = make_batch(3);
  EXPECT_EQ(batch.size(), 3);
  batch.inputs.reset();
  EXPECT_EQ(batch.size(), 3);
  batch.named["mask"].reset();
  EXPECT_EQ(batch.size(), 3);
  batch.named["edges"] = at::zeros({17, 2});  // not one row a sample
  batch.targets = at::zeros({5});
  EXPECT_EQ(batch.size(), 5);
  EXPECT_EQ(Batch().size(), 0);
}

TEST(Batch, SharesHoldEveryTensor) {
  const auto batch = make_batch(5);
  const auto shares = split(batch, 3);
  ASSERT_EQ(shares.size(), 3u);
  for (const int64_t share : {0, 1, 2}) {
    const auto& one = shares[static_cast<size_t>(share)];
    EXPECT_EQ(one.size(), share < 2 ? 2 : 1);
    EXPECT_FALSE(one.targets.defined());
    for (const auto& [name, tensor] : batch.tensors()) {
      EXPECT_TRUE(one[name].equal(tensor.narrow(0, 2 * share, one.size()))) << name;
    }
  }
  EXPECT_EQ(split(make_batch(1), 2)[1].size(), 0);
}

TEST(Batch, WhatIsNotARowASampleCannotBeShared) {
  auto batch = make_batch(5);
  batch.named["edges"] = at::zeros({17, 2});
  EXPECT_ERROR(split(batch, 2), ErrorKind::usage,
               "[data] the batch's tensor `edges` cannot be cut into shares; got shape [17, 2], "
               "expected 5 rows, one for each sample");
}

class OneTooFew final : public Dataset {
 public:
  int64_t size() const override { return 8; }
  Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    return make_batch(static_cast<int64_t>(indices.size()) - 1);
  }
};

TEST(Batch, OfAnotherSizeThanAskedForIsRefused) {
  const OneTooFew dataset;
  for (const int workers : {0, 1}) {
    Loader loader(dataset, {{0, 1, 2, 3}}, {}, {.workers = workers});
    EXPECT_ERROR(loader.next(), ErrorKind::usage,
                 "[data] a data set loaded a batch of another size than asked for; got 3 samples, "
                 "expected 4");
  }
}

}  // namespace
}  // namespace troika::data
