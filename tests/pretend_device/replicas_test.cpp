// Replicas in threads, and batches on their way to a device.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include "tests/pretend_device/pretend_device.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/torch.h"
#include "troika/data/loader.h"
#include "troika/parallel/replicated.h"
#include "troika/train/engine/placement.h"

namespace troika::pretend {
namespace {

std::shared_ptr<torch::nn::LinearImpl> make_net() {
  auto net = std::make_shared<torch::nn::LinearImpl>(4, 3);
  const at::NoGradGuard no_grad;
  net->weight.copy_(at::arange(12).view({3, 4}).sin());
  net->bias.zero_();
  return net;
}

parallel::ModuleReplica replica_of(const std::shared_ptr<torch::nn::LinearImpl>& net) {
  return {net, [net](const data::Batch& batch) {
            return (net->forward(batch.inputs) - batch.targets).square().mean();
          }};
}

data::Batch some_batch() {
  return {at::arange(20, at::kFloat).view({5, 4}).cos(),
          at::arange(15, at::kFloat).view({5, 3}).sin()};
}

train::Placement on_first_device() {
  train::Placement placement;
  placement.device = device(0);
  return placement;
}

TEST(PretendReplicas, GiveTheGradientsOfOneModuleWithoutAWaitOfTheHost) {
  const auto alone = make_net();
  replica_of(alone).loss(some_batch()).backward();
  const std::vector nets{make_net(), make_net()};
  compat::move_module(*nets[0], device(0), at::kFloat);
  parallel::Replicated replicated({replica_of(nets[0]), replica_of(nets[1])});
  const auto batch = on_first_device().place(some_batch());
  for (int step = 0; step < 2; ++step) {
    nets[0]->zero_grad();
    reset_counts();
    replicated.loss(batch).backward();
    // The first step moves the second replica to its device.
    if (step > 0) {
      EXPECT_EQ(counts().host_waits, 0);
    }
  }
  EXPECT_EQ(nets[1]->weight.device(), device(1));
  EXPECT_TRUE(nets[0]->weight.grad().cpu().allclose(alone->weight.grad(), 1e-6, 1e-6));
  EXPECT_TRUE(nets[0]->bias.grad().cpu().allclose(alone->bias.grad(), 1e-6, 1e-6));
}

// Neither the threads' default streams nor the host order what the caller's streams do. Without
// gradients of the parameters, because LibTorch 1.13 makes those of this device on default streams.
TEST(PretendReplicas, RunInTheOrderOfTheCallersStreams) {
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  const c10::StreamGuard on_second(guard.getStreamFromGlobalPool(device(1)));
  const c10::StreamGuard on_first(guard.getStreamFromGlobalPool(device(0)));
  const std::vector nets{make_net(), make_net()};
  compat::move_module(*nets[0], device(0), at::kFloat);
  std::vector<at::Tensor> seen(2);
  std::vector<parallel::ModuleReplica> replicas;
  for (size_t r = 0; r < 2; ++r) {
    replicas.push_back({nets[r], [&seen, r, net = nets[r]](const data::Batch& batch) {
                          const at::NoGradGuard no_grad;
                          seen[r] = (net->forward(batch.inputs) - batch.targets).square().sum();
                          const at::AutoGradMode with_grad(true);
                          return at::ones({}).set_requires_grad(true) * 2;
                        }});
  }
  parallel::Replicated replicated(std::move(replicas));
  const auto batch = some_batch();
  const auto moved = on_first_device().place(batch);
  moved.inputs.mul_(2);
  replicated.loss(moved);
  const auto alone = make_net();
  const auto expected =
      (alone->forward(batch.inputs * 2) - batch.targets).square().sum().item<double>();
  EXPECT_NEAR(seen[0].item<double>() + seen[1].item<double>(), expected, 1e-5 * expected);
}

// Loads every batch into the same memory.
class OneBuffer : public data::Dataset {
 public:
  int64_t size() const override { return 8; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    buffer_.fill_(static_cast<double>(indices[0]));
    return {.inputs = buffer_, .targets = at::full({2}, indices[0], at::kLong)};
  }

 private:
  const at::Tensor buffer_ = at::empty({2, 3, 4, 4}, at::kDouble);
};

TEST(PretendBatches, ArriveWithoutTheHostWaiting) {
  const OneBuffer dataset;
  train::Placement placement;
  placement.device = device(0);
  placement.memory_format = at::MemoryFormat::ChannelsLast;
  placement.precision.parameters = at::kFloat;
  for (const int workers : {0, 1}) {
    data::Loader loader(dataset, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, {},
                        {.workers = workers, .prefetch = 1, .device = c10::kPrivateUse1});
    std::vector<data::Batch> placed;
    reset_counts();
    while (const auto loaded = loader.next()) {
      EXPECT_TRUE(loaded->is_staged);
      placed.push_back(placement.place(*loaded));
      EXPECT_FALSE(placed.back().is_staged) << "it is on the device";
    }
    EXPECT_EQ(counts().host_waits, 0);
    ASSERT_EQ(placed.size(), 4u);
    for (size_t i = 0; i < placed.size(); ++i) {
      EXPECT_EQ(placed[i].inputs.scalar_type(), at::kFloat);
      EXPECT_TRUE(placed[i].inputs.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(placed[i].inputs.eq(2.0 * static_cast<double>(i)).all().item<bool>());
      EXPECT_TRUE(placed[i].targets.eq(2 * static_cast<int64_t>(i)).all().item<bool>());
    }
  }
}

// A program may write to its batch as soon as place() has returned.
TEST(PretendBatches, OfAProgramsOwnMemoryAreWaitedFor) {
  train::Placement placement;
  placement.device = device(0);
  const auto own = at::ones({100});
  const auto placed = placement.place({.inputs = own, .targets = {}});
  own.fill_(7);
  EXPECT_TRUE(placed.inputs.eq(1).all().item<bool>());
}

TEST(PretendBatches, OfTheCpuAreNotCopied) {
  const OneBuffer dataset;
  data::Loader loader(dataset, {{0, 1}}, {}, {.workers = 0, .prefetch = 1});
  const auto loaded = loader.next();
  EXPECT_FALSE(loaded->is_staged);
  EXPECT_EQ(loaded->inputs.data_ptr(),
            dataset.load(std::vector<int64_t>{0, 1}, {}).inputs.data_ptr());
}

}  // namespace
}  // namespace troika::pretend
