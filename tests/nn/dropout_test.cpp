// Dropout by keys: masks depend only on samples and blocks.
#include "troika/nn/dropout.h"

#include <gmock/gmock.h>

#include <array>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/sequential.h"
#include "troika/nn/token_part.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

at::Tensor dropped(const at::Tensor& input, std::vector<int64_t> samples, double p,
                   uint64_t seed = 1) {
  const KeyedDraws draws({seed, std::move(samples)});
  return dropout(input, p);
}

// Returns the positions of the kept elements.
at::Tensor mask(at::IntArrayRef sizes, std::vector<int64_t> samples, uint64_t seed = 1) {
  return dropped(at::ones(sizes), std::move(samples), 0.5, seed) > 0;
}

TEST(KeyedDropout, ASamplesMaskIsTheSameInEveryBatch) {
  const auto whole = mask({4, 5, 7}, {3, 1, 4, 8});
  EXPECT_TRUE(mask({2, 5, 7}, {4, 1}).equal(at::stack({whole[2], whole[1]})));
  EXPECT_TRUE(mask({1, 5, 7}, {8})[0].equal(whole[3]));
  // Several rows of a sample, as with the heads of attention.
  EXPECT_TRUE(mask({8, 5, 7}, {3, 1, 4, 8}).slice(0, 6).equal(mask({2, 5, 7}, {8})));
}

TEST(KeyedDropout, SeedsDrawsAndBlocksHaveMasksOfTheirOwn) {
  constexpr int64_t kCount = 100'000;
  std::vector<at::Tensor> masks{mask({1, kCount}, {0}), mask({1, kCount}, {1}),
                                mask({1, kCount}, {0}, 2)};
  {
    const KeyedDraws draws({1, {0}});
    const auto draw = [&] { masks.push_back(dropout(at::ones({1, kCount}), 0.5) > 0); };
    EXPECT_TRUE((dropout(at::ones({1, kCount}), 0.5) > 0).equal(masks[0]));
    draw();
    const DrawsOfBlock block(0);
    draw();
  }
  // Two independent masks agree in half of the places, within 5 standard deviations.
  for (size_t i = 0; i < masks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto same = masks[i].eq(masks[j]).sum().item<double>();
      EXPECT_NEAR(same, kCount / 2.0, 5 * std::sqrt(kCount / 4.0)) << i << ", " << j;
    }
    // The same holds for a mask and the mask shifted by one place.
    const auto moved = masks[i].slice(1, 1).eq(masks[i].slice(1, 0, -1)).sum().item<double>();
    EXPECT_NEAR(moved, kCount / 2.0, 5 * std::sqrt(kCount / 4.0)) << i;
  }
}

TEST(KeyedDropout, KeepsItsShareOfElements) {
  constexpr double kCount = 200'000;
  for (const double p : {0.01, 0.1, 0.5, 0.9}) {
    const auto output = dropped(at::full({2, 100'000}, 3.0, at::kFloat), {5, 6}, p);
    const auto kept = output.ne(0).sum().item<double>();
    EXPECT_NEAR(kept, (1 - p) * kCount, 5 * std::sqrt(p * (1 - p) * kCount)) << p;
    EXPECT_TRUE(output.masked_select(output.ne(0)).allclose(at::tensor(3 / (1 - p), at::kFloat)));
  }
  const auto input = at::ones({2, 3});
  EXPECT_TRUE(dropped(input, {0, 1}, 0).is_same(input));
}

TEST(KeyedDropout, IsTheSameInEveryType) {
  const at::Tensor expected = mask({3, 1001}, {7, 8, 9});
  for (const auto type : {at::kBFloat16, at::kDouble}) {
    const auto output = dropped(at::ones({3, 1001}, type), {7, 8, 9}, 0.5);
    EXPECT_EQ(output.scalar_type(), type);
    EXPECT_TRUE((output > 0).equal(expected)) << type;
  }
}

TEST(KeyedDropout, TheBackwardPassMakesTheSameMask) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::ones({2, 4, 6}, type).set_requires_grad(true);
    const auto output = dropped(x, {0, 1}, 0.25);
    const auto gradient = torch::autograd::grad({output.square().sum()}, {x}, {}, true, true)[0];
    EXPECT_TRUE(gradient.allclose(2 * output / 0.75)) << type;
    // And that of the backward pass.
    const auto second = torch::autograd::grad({gradient.sum()}, {x})[0];
    EXPECT_TRUE(second.ne(0).equal(output.ne(0))) << type;
  }
}

TEST(KeyedDropout, AShardHasItsPartOfTheMask) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto all = dropped(at::ones({2, 3, 8, 5}, type), {4, 2}, 0.5);
    for (const int64_t dim : {1, 2, 3}) {
      const int64_t whole = all.size(dim), offset = 1, size = whole - 2;
      const KeyedDraws draws({1, {4, 2}});
      const auto part =
          dropout(at::ones_like(all.narrow(dim, offset, size), at::MemoryFormat::Contiguous), 0.5,
                  {.dim = dim, .offset = offset, .whole = whole});
      EXPECT_TRUE(part.equal(all.narrow(dim, offset, size))) << dim;
    }
  }
}

// A part may be cut again, by tokens or by columns.
TEST(KeyedDropout, APartOfTheTokensHasItsPartOfTheMask) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto all = dropped(at::ones({2, 12, 6}, type), {4, 2}, 0.5);
    for (const int index : {0, 1}) {
      const TokenPart tokens{index, 2};
      const TokenPartGuard guard(tokens);
      const auto own = rows_at(all.transpose(0, 1), tokens.stretches(6)).transpose(0, 1);
      const auto expect_part = [&](const std::optional<EqualPart>& part, const at::Tensor& mask) {
        const KeyedDraws draws({1, {4, 2}});
        Dropout dropout(0.5);
        dropout.use_part(part);
        EXPECT_TRUE(dropout.forward(at::ones(mask.sizes(), type)).equal(mask)) << index;
      };
      expect_part(std::nullopt, own);
      expect_part(EqualPart{1, 2, 3}, own.narrow(1, 4, 2));
      expect_part(EqualPart{-1, 1, 3}, own.narrow(2, 2, 2));
    }
  }
}

TEST(KeyedDropout, IsLibTorchsWhereDrawsAreNotKeyed) {
  const auto x = at::rand({4, 100});
  torch::manual_seed(3);
  const auto expected = at::dropout(x, 0.3, true);
  torch::manual_seed(3);
  EXPECT_TRUE(dropout(x, 0.3).equal(expected));
}

TEST(KeyedDropout, RefusesRowsThatAreNotOfSamples) {
  EXPECT_ERROR(dropped(at::ones({5, 2}), {0, 1}, 0.5), ErrorKind::usage,
               "[nn] dropout cannot find the samples of its input; got shape [5, 2], "
               "expected as many rows for each of 2 samples (dim 0 of the input must be the batch "
               "dimension; at::dropout() takes any tensor)");
}

// Masks do not change if the batch or the model is cut, or if blocks are recomputed.
TEST(KeyedDropout, AModelsMasksDoNotDependOnWhereItIsCut) {
  for (const std::string name : {"mlp", "gpt"}) {
    const auto model = make_model({.name = name,
                                   .dropout = 0.3,
                                   .image_size = 4,
                                   .hidden_width = 16,
                                   .vocab_size = 11,
                                   .context = 8,
                                   .layers = 2,
                                   .heads = 2,
                                   .width = 12});
    model->to(at::kDouble);
    const auto input = name == "gpt" ? at::arange(32).remainder(11).view({4, 8})
                                     : at::sin(at::arange(4 * 48, at::kDouble)).view({4, 3, 4, 4});
    const auto forward = [&](int64_t begin, int64_t end) {
      std::vector<int64_t> samples;
      for (int64_t i = begin; i < end; ++i) samples.push_back(10 + i);
      const KeyedDraws draws({1, samples});
      return model->forward(input.slice(0, begin, end));
    };
    const auto whole = forward(0, 4);
    EXPECT_TRUE(at::cat({forward(0, 1), forward(1, 4)}).allclose(whole, 1e-12, 1e-12)) << name;
    // Runs the second half alone, as another stage would.
    const auto run = [&](at::Tensor x, size_t begin, size_t end) {
      const KeyedDraws draws({1, {10, 11, 12, 13}});
      return model->forward(begin, end, {std::move(x)}).front();
    };
    const size_t half = model->blocks().size() / 2;
    EXPECT_TRUE(run(run(input, 0, half), half, model->blocks().size()).equal(whole)) << name;
  }
}

TEST(KeyedDropout, OfASequentialIsKeyedToo) {
  const auto model = from_sequential(torch::nn::Sequential(torch::nn::Dropout(0.5)));
  const KeyedDraws draws({1, {0, 1}});
  const auto output = model->forward(at::ones({2, 50}));
  const KeyedDraws again({1, {0, 1}});
  EXPECT_TRUE(model->forward(at::ones({2, 50})).equal(output));
  model->eval();
  EXPECT_TRUE(model->forward(at::ones({2, 50})).equal(at::ones({2, 50})));
}

}  // namespace
}  // namespace troika::nn
