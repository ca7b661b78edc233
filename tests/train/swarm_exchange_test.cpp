// The values that a peer of a swarm gives to an average, and takes from it.
#include <gtest/gtest.h>

#include <memory>

#include "troika/compat/torch.h"
#include "troika/parallel/swarm/swarm_exchange.h"

namespace troika::train {
namespace {

TEST(SwarmExchange, AveragesGradientsAndFiniteBuffers) {
  class Net : public torch::nn::Module {
   public:
    Net() {
      used = register_parameter("used", torch::ones(2));
      unused = register_parameter("unused", torch::ones(2));
      mean = register_buffer("mean", torch::ones(2));
      sick = register_buffer("sick", torch::full(2, NAN));
      mask = register_buffer("mask", torch::full(2, -INFINITY));
      large = register_buffer("large", torch::full(1, (int64_t{1} << 40) + 1));
      count = register_buffer("num_batches_tracked", torch::full({}, int64_t{4}));
      turn = register_buffer("turn", torch::full(1, c10::complex<float>(0, 1)));
    }
    at::Tensor used, unused, mean, sick, mask, large, count, turn;
  };
  const auto net = std::make_shared<Net>();
  const auto before = net->large.clone(), turn = net->turn.clone();
  parallel::SwarmMember own{parallel::SwarmMemberOptions(net::Secret::random())};
  parallel::SwarmExchange exchange(*net, own);
  net->used.mutable_grad() = torch::full(2, 4.0);
  const auto values = exchange.gather(0.5);
  EXPECT_TRUE(values.isfinite().all().item<bool>());
  // Another peer with the same weight has a gradient of 0, and a finite `sick` of 6.
  net->sick.fill_(6);
  net->used.mutable_grad().zero_();
  const auto other = exchange.gather(0.5);
  net->unused.mutable_grad() = torch::full(2, NAN);
  exchange.spread((values + other) / 2);
  EXPECT_TRUE(net->used.grad().equal(torch::ones(2)));
  EXPECT_FALSE(net->unused.grad().defined());
  EXPECT_TRUE(net->mean.equal(torch::ones(2)));
  EXPECT_TRUE(net->sick.equal(torch::full(2, 6.0)));
  EXPECT_TRUE(net->mask.equal(torch::full(2, -INFINITY)));
  EXPECT_TRUE(net->large.equal(before));
  EXPECT_TRUE(net->turn.equal(turn));
  EXPECT_EQ(net->count.item<int64_t>(), 4);
  net->used.mutable_grad().fill_(NAN);
  EXPECT_FALSE(exchange.gather(1).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace troika::train
