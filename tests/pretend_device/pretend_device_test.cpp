// The pretend device: memory, late execution, order, operators and random numbers.
#include "tests/pretend_device/pretend_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <stdexcept>

#include "troika/compat/accelerator.h"

namespace troika::pretend {
namespace {

using testing::HasSubstr;
using testing::Throws;
using testing::ThrowsMessage;

const c10::Device kFirst = device(0);

at::TensorOptions on_device(at::ScalarType type = at::kFloat) {
  return at::TensorOptions().device(kFirst).dtype(type);
}

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl result(c10::kPrivateUse1);
  return result;
}

c10::Stream another_stream() {
  return guard().getStreamFromGlobalPool(kFirst);
}

TEST(PretendDeviceDeathTest, HostReadsEndTheProcessAndSayWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto x = at::ones({4}, on_device());
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile float*>(x.data_ptr())),
               "the host touched device memory");
}

TEST(PretendDevice, CopiesBothWays) {
  const auto host = at::arange(12, at::kFloat).view({3, 4});
  EXPECT_TRUE(host.to(kFirst).to(at::kCPU).equal(host));
  EXPECT_TRUE(host.to(kFirst).t().to(at::kCPU).equal(host.t()));
  EXPECT_TRUE(host.to(kFirst).to(at::kDouble).cpu().equal(host.to(at::kDouble)));
  EXPECT_TRUE(host.t().to(kFirst).contiguous().cpu().equal(host.t()));
  EXPECT_TRUE(host.to(device(1)).to(kFirst).cpu().equal(host));
  const auto into = at::zeros({2, 3, 4}, on_device());
  into.copy_(host);  // broadcasts
  EXPECT_TRUE(into.cpu().equal(host.expand({2, 3, 4})));
}

TEST(PretendDevice, NothingRunsBeforeSomebodyWaits) {
  const auto x = at::full({3}, 2.0, on_device());
  const auto host = at::zeros({3});
  host.copy_(x * 3, /*non_blocking=*/true);
  EXPECT_TRUE(host.isnan().all().item<bool>()) << "not copied before the wait";
  guard().getStream(kFirst).synchronize();
  EXPECT_TRUE(host.eq(6).all().item<bool>());
}

TEST(PretendDevice, NewMemoryIsNaN) {
  EXPECT_TRUE(at::empty({100}, on_device()).isnan().all().item<bool>());
}

TEST(PretendDevice, SourceThatChangesBeforeItsCopyIsAnError) {
  const auto host = at::ones({3});
  const auto x = at::empty({3}, on_device());
  x.copy_(host, /*non_blocking=*/true);
  host.fill_(2);
  EXPECT_THAT([&] { static_cast<void>(x.cpu()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("the host wrote to memory before")));
}

TEST(PretendDevice, StreamThatDoesNotWaitIsAnError) {
  const auto x = at::ones({3}, on_device());
  const auto other = another_stream();
  const c10::StreamGuard on_other(other);
  EXPECT_THAT([&] { static_cast<void>(x.add(1)); },
              ThrowsMessage<std::logic_error>(HasSubstr("nothing orders aten::add")));
}

TEST(PretendDevice, EventsOrderStreams) {
  const auto x = at::ones({3}, on_device());
  c10::Event made(c10::kPrivateUse1), used(c10::kPrivateUse1);
  made.record(guard().getStream(kFirst));
  const auto other = another_stream();
  at::Tensor y;
  {
    const c10::StreamGuard on_other(other);
    made.block(other);
    y = x.add(1);
    used.record(other);
  }
  EXPECT_THAT([&] { x.mul_(5); }, ThrowsMessage<std::logic_error>(HasSubstr("nothing orders")))
      << "written while the other stream reads it";
  used.block(guard().getStream(kFirst));
  EXPECT_FLOAT_EQ(y[0].item<float>(), 2);
}

TEST(PretendDevice, HostThatWaitedOrdersStreams) {
  const auto x = at::ones({3}, on_device());
  guard().getStream(kFirst).synchronize();
  const c10::StreamGuard on_other(another_stream());
  EXPECT_FLOAT_EQ(x.add(1)[0].item<float>(), 2);
}

TEST(PretendDevice, QueriesOfAnEventComeToItsEnd) {
  const auto x = at::ones({3}, on_device());
  c10::Event made(c10::kPrivateUse1);
  made.record(guard().getStream(kFirst));
  int queries = 0;
  while (!made.query()) ++queries;
  EXPECT_GT(queries, 0);
}

// As with CUDA's caching allocator and Tensor::record_stream().
TEST(PretendDevice, ReleasedMemoryIsAllocatedAgainAtOnce) {
  auto x = at::ones({1000}, on_device());
  c10::Event made(c10::kPrivateUse1);
  made.record(guard().getStream(kFirst));
  const auto other = another_stream();
  const auto read = [&] {
    const c10::StreamGuard on_other(other);
    made.block(other);
    return x.sum();
  };
  const auto sum = read();
  x.reset();
  EXPECT_THAT([&] { at::empty({1000}, on_device()); },
              ThrowsMessage<std::logic_error>(HasSubstr("nothing orders allocation")));

  x = at::ones({3000}, on_device());
  made.record(guard().getStream(kFirst));
  const auto again = read();
  guard().recordDataPtrOnStream(x.storage().data_ptr(), other);
  const void* const kept = x.data_ptr();
  x.reset();
  const auto elsewhere = at::empty({3000}, on_device());
  EXPECT_NE(elsewhere.data_ptr(), kept);
  other.synchronize();
  EXPECT_FLOAT_EQ(again.item<float>(), 3000);
  EXPECT_EQ(at::empty({3000}, on_device()).data_ptr(), kept);
}

TEST(PretendDevice, DevicesAreRefusedTogether) {
  const auto x = at::ones({3}, on_device());
  EXPECT_THROW(static_cast<void>(x + at::ones({3}, on_device().device(device(1)))), c10::Error);
  EXPECT_THROW(static_cast<void>(x + at::ones({3})), c10::Error);
  EXPECT_FLOAT_EQ((x + at::scalar_tensor(2.0))[1].item<float>(), 3);
}

TEST(PretendDevice, ErrorsOfShapesComeAtTheCall) {
  EXPECT_THROW(static_cast<void>(at::ones({2, 3}, on_device()).mm(at::ones({2, 3}, on_device()))),
               c10::Error);
}

TEST(PretendDevice, InPlaceAndOutAndViews) {
  const auto x = at::zeros({4, 4}, on_device());
  x.select(0, 1).add_(1);
  x.narrow(1, 0, 2).mul_(2);
  x.t()[3].fill_(7);
  auto out = at::empty({0}, on_device());
  at::add_out(out, x, x);
  const auto host = at::zeros({4, 4});
  host.select(0, 1).add_(1);
  host.narrow(1, 0, 2).mul_(2);
  host.t()[3].fill_(7);
  EXPECT_TRUE(x.cpu().equal(host));
  EXPECT_TRUE(out.cpu().equal(host + host));
  EXPECT_TRUE(x.masked_select(x.gt(1)).cpu().equal(host.masked_select(host.gt(1))));
  EXPECT_TRUE(x.index({x.gt(1)}).cpu().equal(host.index({host.gt(1)})));
  EXPECT_TRUE(at::cat({x, x}, 1).cpu().equal(at::cat({host, host}, 1)));
  const auto [values, places] = x.max(0);
  EXPECT_TRUE(values.cpu().equal(std::get<0>(host.max(0))));
  EXPECT_TRUE(x.equal(x.clone()));
  EXPECT_TRUE(x.view({2, 8}).unsqueeze(0).cpu().equal(host.view({1, 2, 8})));
  const std::vector<at::Tensor> list{x[0], x[1]};
  at::_foreach_add_(list, 1);
  EXPECT_TRUE(x[1].cpu().equal(host[1] + 1));
}

TEST(PretendDevice, GeneratorsDrawWhatTheCpusDoes) {
  at::Generator own = default_generator(0);
  const auto host = at::detail::createCPUGenerator(11);
  own.set_current_seed(11);
  const auto x = at::empty({8}, on_device()).normal_();
  EXPECT_TRUE(x.cpu().equal(at::empty({8}).normal_(0, 1, host)));
  const auto state = own.get_state();
  const auto y = at::rand({8}, on_device());
  EXPECT_TRUE(y.cpu().equal(at::rand({8}, host)));
  own.set_state(state);
  EXPECT_TRUE(at::rand({8}, on_device()).equal(y)) << "drawn late, of the state at the call";
}

TEST(PretendDevice, TrainsAsTheCpu) {
  torch::manual_seed(2);
  torch::nn::Sequential host(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                             torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(64, 5));
  torch::nn::Sequential own = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(host->clone());
  compat::move_module(*own, kFirst, at::kFloat);
  const auto input = at::randn({2, 3, 6, 6});
  const auto target = at::tensor({1, 4}, at::kLong);
  const auto train = [&](torch::nn::Sequential& model, c10::Device where) {
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
    float last = 0;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      auto loss = at::cross_entropy_loss(model->forward(input.to(where)), target.to(where));
      loss.backward();
      optimizer.step();
      last = loss.item<float>();
    }
    return last;
  };
  const float expected = train(host, at::kCPU);
  EXPECT_FLOAT_EQ(train(own, kFirst), expected);
  for (size_t i = 0; i < host->parameters().size(); ++i) {
    EXPECT_TRUE(own->parameters()[i].cpu().allclose(host->parameters()[i], 1e-6, 1e-7)) << i;
  }
}

TEST(PretendDevice, MemoryIsReleased) {
  const size_t before = allocated_bytes(0);
  {
    const auto x = at::ones({1000}, on_device()).requires_grad_();
    (x * x).sum().backward();
    EXPECT_GT(allocated_bytes(0), before);
  }
  EXPECT_EQ(allocated_bytes(0), before);
}

}  // namespace
}  // namespace troika::pretend
