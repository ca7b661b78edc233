#include "troika/compat/compute_threads.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/nn/causal_products.h"
#include "troika/nn/dropout.h"
#include "troika/nn/gelu.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/linear_cross_entropy.h"

namespace troika::nn {
namespace {

using Range = std::pair<int64_t, int64_t>;
using testing::ElementsAre;
using testing::IsEmpty;

class ComputeThreads : public testing::Test {
 protected:
  ~ComputeThreads() override { at::set_num_threads(before_); }

  // Returns the ranges of a loop, and the number of threads that ran them.
  std::vector<Range> cut(int64_t begin, int64_t end, int64_t grain) {
    std::mutex mutex;
    std::vector<Range> ranges;
    threads_.clear();
    compat::parallel_for(begin, end, grain, [&](int64_t from, int64_t to) {
      const std::lock_guard lock(mutex);
      ranges.emplace_back(from, to);
      threads_.insert(std::this_thread::get_id());
    });
    const std::lock_guard lock(mutex);
    std::ranges::sort(ranges);
    return ranges;
  }

  std::set<std::thread::id> threads_;
  const int before_ = at::get_num_threads();
};

// ThreadSanitizer does not see how LibTorch's threads wait, so programs compute on one there.
#ifndef __SANITIZE_THREAD__
TEST_F(ComputeThreads, ShareALoop) {
  at::set_num_threads(3);
  EXPECT_THAT(cut(10, 21, 1), ElementsAre(Range(10, 13), Range(13, 17), Range(17, 21)));
  EXPECT_EQ(threads_.size(), 3u);
  EXPECT_THAT(cut(0, 5, 3), ElementsAre(Range(0, 2), Range(2, 5)));
  EXPECT_EQ(threads_.size(), 2u);
  EXPECT_THAT(cut(0, 2, 1), ElementsAre(Range(0, 1), Range(1, 2)));
}

TEST_F(ComputeThreads, AreEachRunOnOnce) {
  at::set_num_threads(3);
  std::mutex mutex;
  std::multiset<std::thread::id> threads;
  compat::on_each_compute_thread([&] {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), 3u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 1u);
}
#endif

TEST_F(ComputeThreads, AreOneForALoopThatIsSmallOrInsideOfAnother) {
  at::set_num_threads(3);
  EXPECT_THAT(cut(0, 5, 5), ElementsAre(Range(0, 5)));
  EXPECT_EQ(threads_.count(std::this_thread::get_id()), 1u);
  EXPECT_THAT(cut(4, 4, 1), IsEmpty());
  std::mutex mutex;
  std::vector<Range> inner;
  compat::parallel_for(0, 2, 1, [&](int64_t, int64_t) {
    compat::parallel_for(0, 8, 1, [&](int64_t from, int64_t to) {
      const std::lock_guard lock(mutex);
      inner.emplace_back(from, to);
    });
  });
  for (const auto& range : inner) EXPECT_EQ(range, Range(0, 8));
  at::set_num_threads(1);
  EXPECT_THAT(cut(0, 8, 1), ElementsAre(Range(0, 8)));
}

TEST_F(ComputeThreads, PassErrorsOn) {
  at::set_num_threads(2);
  EXPECT_THROW(
      compat::parallel_for(0, 2, 1, [](int64_t, int64_t) { throw std::runtime_error("no"); }),
      std::runtime_error);
}

TEST_F(ComputeThreads, ChangeNoBitOfElementWiseKernels) {
  const auto results = [](int threads) {
    at::set_num_threads(threads);
    torch::manual_seed(1);
    const auto x = torch::randn({4, 128, 192}).requires_grad_();
    const KeyedDraws draws({7, {3, 1, 4, 8}});
    const auto output = dropout(gelu_tanh(x), 0.3);
    output.square().sum().backward();
    return std::pair(output.detach(), x.grad());
  };
  EXPECT_TRUE(results(3).first.equal(results(1).first));
  EXPECT_TRUE(results(3).second.equal(results(1).second));
}

// LibTorch's matrix products, which these kernels include, may round differently.
TEST_F(ComputeThreads, ChangeNoResultOfKernelsOfRows) {
  const auto results = [](int threads) {
    at::set_num_threads(threads);
    torch::manual_seed(1);
    const auto x = torch::randn({4, 128, 192}).requires_grad_();
    const auto weight = torch::randn({50, 64}).requires_grad_();
    const auto attended = causal_products(x, 2);
    const auto loss =
        linear_cross_entropy(attended, weight, torch::randint(50, {4, 128}, at::kLong), -100);
    loss.sum().backward();
    return std::vector{attended.detach(), loss.detach(), x.grad(), weight.grad()};
  };
  const auto one = results(1), three = results(3);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(three[i].allclose(one[i], 1e-4, 1e-5)) << i;
}

}  // namespace
}  // namespace troika::nn
