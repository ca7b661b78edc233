// Cases that need a real GPU, for scripts/test-gpu. tests/pretend_device has the cases that need
// none.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include "troika/comm/edge.h"
#include "troika/comm/local/local.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/gpu.h"
#include "troika/compat/staging.h"
#include "troika/compat/torch.h"
#include "troika/data/loader.h"
#include "troika/nn/precision.h"
#include "troika/optim/grad_scaler.h"
#include "troika/optim/optimizer.h"
#include "troika/train/engine/placement.h"

namespace troika {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

at::TensorOptions on_gpu(at::ScalarType type = at::kFloat) {
  return at::TensorOptions().device(kGpu).dtype(type);
}

TEST(Gpu, IsTheAccelerator) {
  EXPECT_EQ(compat::accelerator_type(), c10::kCUDA);
  EXPECT_GE(compat::accelerator_count(), 1);
  EXPECT_FALSE(compat::gpu_name(kGpu).empty());
}

TEST(Gpu, RandomNumbersGoOnFromASavedState) {
  compat::manual_seed(7);
  auto generator = compat::default_generator(kGpu);
  const auto state = generator.get_state();
  const auto first = at::rand({100}, on_gpu());
  generator.set_state(state);
  EXPECT_TRUE(at::rand({100}, on_gpu()).equal(first));
}

TEST(Gpu, StagedMemoryIsPageLocked) {
  const auto tensor =
      at::arange(24, at::kFloat).view({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto staged = compat::staged_for(c10::kCUDA, tensor);
  EXPECT_TRUE(staged.is_pinned());
  EXPECT_EQ(staged.strides(), tensor.strides());
  EXPECT_TRUE(staged.equal(tensor));
  EXPECT_TRUE(at::empty({3}, compat::staging_options(at::empty({3}, on_gpu()))).is_pinned());
}

class Numbers : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    return {.inputs =
                at::full({static_cast<int64_t>(indices.size()), 1 << 20}, indices[0], at::kDouble),
            .targets = at::full({static_cast<int64_t>(indices.size())}, indices[0], at::kLong)};
  }
};

// The memory of batches is reused while the GPU is behind by many copies.
TEST(Gpu, BatchesArriveWhole) {
  const Numbers dataset;
  std::vector<std::vector<int64_t>> indices;
  for (int64_t i = 0; i < 64; ++i) indices.push_back({i});
  data::Loader loader(dataset, indices, {}, {.workers = 2, .prefetch = 2, .device = c10::kCUDA});
  train::Placement placement;
  placement.device = kGpu;
  placement.precision.parameters = at::kFloat;
  const auto busy = at::rand({4096, 4096}, on_gpu());
  at::Tensor wrong = at::zeros({}, on_gpu(at::kLong));
  for (int64_t i = 0; const auto batch = loader.next(); ++i) {
    at::mm(busy, busy);
    const auto placed = placement.place(*batch);
    EXPECT_EQ(placed.inputs.scalar_type(), at::kFloat);
    wrong += placed.inputs.ne(static_cast<double>(i)).sum() + placed.targets.ne(i).sum();
  }
  EXPECT_EQ(wrong.item<int64_t>(), 0);
}

TEST(Gpu, OptimizersAreTheCpus) {
  for (const char* name : {"sgd", "adam", "adamw", "adagrad", "lamb"}) {
    SCOPED_TRACE(name);
    const optim::OptimizerOptions options{.name = name, .lr = 0.01, .weight_decay = 0.01};
    if (!optim::steps_on_devices(options)) continue;
    const auto step = [&](c10::Device device) {
      auto parameter = at::arange(3000, at::kFloat).sin().to(device);
      const auto optimizer = optim::make_optimizer(std::vector<at::Tensor>{parameter}, options);
      for (int i = 0; i < 10; ++i) {
        parameter.mutable_grad() = (parameter * (i + 1)).cos();
        optimizer->step();
      }
      return parameter.cpu();
    };
    EXPECT_TRUE(step(kGpu).allclose(step(c10::kCPU), 1e-5, 1e-6));
  }
}

TEST(Gpu, AutocastComputesInHalves) {
  const auto precision = nn::parse_precision("16-mixed");
  nn::require_supported(precision, c10::kCUDA);
  const nn::Autocast autocast(precision, c10::kCUDA);
  const auto square = at::rand({64, 64}, on_gpu());
  EXPECT_EQ(at::matmul(square, square).scalar_type(), at::kHalf);
}

// Each rank has the one GPU, so these go through page-locked memory of the host.
TEST(Gpu, CollectivesThroughTheHostAreOrdered) {
  comm::local::run(2, [](const comm::Group& group) {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    for (int turn = 0; turn < 50; ++turn) {
      const c10::StreamGuard own(guard.getStreamFromGlobalPool(kGpu));
      const auto busy = at::rand({2048, 2048}, on_gpu());
      const auto sum =
          at::full({1 << 20}, group.rank() + 1, on_gpu()) + at::mm(busy, busy).sum() * 0;
      const auto work = group.all_reduce(sum, comm::ReduceOp::sum, {.async_op = true});
      at::mm(busy, busy);
      work.wait();
      EXPECT_TRUE(sum.eq(3).all().item<bool>());
    }
  });
}

TEST(Gpu, MessagesAndEdgesArriveWhole) {
  comm::local::run(2, [](const comm::Group& group) {
    const int peer = 1 - group.rank();
    const auto to = group.edge_to(peer);
    const auto from = group.edge_from(peer);
    for (int turn = 0; turn < 20; ++turn) {
      const auto busy = at::rand({2048, 2048}, on_gpu());
      const auto sent =
          at::full({1 << 20}, 10 * turn + group.rank(), on_gpu()) + at::mm(busy, busy).sum() * 0;
      const auto into = at::empty_like(sent), on_edge = at::empty_like(sent);
      const auto receiving = group.receive(into, peer);
      const auto work = group.send(sent, peer), edge_work = to.send(sent);
      receiving.wait();
      from.receive_into(on_edge);
      work.wait();
      edge_work.wait();
      EXPECT_TRUE(into.eq(10 * turn + peer).all().item<bool>());
      EXPECT_TRUE(on_edge.eq(10 * turn + peer).all().item<bool>());
    }
  });
}

TEST(Gpu, MemoryThatIsNotThereIsRefused) {
  EXPECT_THROW(at::empty({int64_t{1} << 45}, on_gpu()), c10::Error);
  EXPECT_EQ(at::ones({4}, on_gpu()).sum().item<double>(), 4) << "the device still works";
}

}  // namespace
}  // namespace troika
