// Collectives and messages of tensors on the pretend device, staged through the host.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <cstring>
#include <thread>

#include "tests/pretend_device/pretend_device.h"
#include "troika/comm/edge.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/group_impl.h"
#include "troika/compat/torch.h"
#include "troika/parallel/hook_thread.h"

namespace troika::pretend {
namespace {

at::Tensor full_on(const comm::Group& group, double value, int64_t size = 1000) {
  return at::full({size}, value,
                  at::TensorOptions().device(device(group.rank())).dtype(at::kFloat));
}

bool all_are(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

void wait_until_done(const comm::Work& work) {
  while (!work.done()) std::this_thread::yield();
}

// Expects the right result of each collective for tensors of ones and twos.
void expect_collectives(const comm::Group& group, bool async) {
  const comm::CallOptions how{.async_op = async};
  const auto mine = [&] { return full_on(group, group.rank() + 1); };
  const auto sum = mine();
  group.all_reduce(sum, comm::ReduceOp::sum, how).wait();
  EXPECT_TRUE(all_are(sum, 3));
  const auto sent = mine();
  group.broadcast(sent, 1, how).wait();
  EXPECT_TRUE(all_are(sent, 2));
  const auto all = full_on(group, 0, 2000);
  group.all_gather(all, mine(), {}, how).wait();
  EXPECT_TRUE(all_are(all.narrow(0, 0, 1000), 1));
  EXPECT_TRUE(all_are(all.narrow(0, 1000, 1000), 2));
  const auto part = full_on(group, 0, 500);
  group.reduce_scatter(part, mine(), comm::ReduceOp::average, {}, how).wait();
  EXPECT_TRUE(all_are(part, 1.5));
}

TEST(PretendCommunication, CollectivesOfTheCaller) {
  comm::local::run(2, [](const comm::Group& group) { expect_collectives(group, false); });
}

TEST(PretendCommunication, CollectivesBesideTheCaller) {
  comm::local::run(2, [](const comm::Group& group) { expect_collectives(group, true); });
}

TEST(PretendCommunication, TensorsWithGapsAndOfOtherTypes) {
  comm::local::run(2, [](const comm::Group& group) {
    const auto grid = full_on(group, 1).view({20, 50}).t();
    const auto columns = grid.slice(1, 0, 20, 2);
    group.all_reduce(columns, comm::ReduceOp::sum, {.async_op = true}).wait();
    EXPECT_TRUE(all_are(columns, 2));
    EXPECT_TRUE(all_are(grid.slice(1, 1, 20, 2), 1));
    const auto flags = full_on(group, group.rank()).to(at::kBool);
    group.all_reduce(flags, comm::ReduceOp::max, {.async_op = true}).wait();
    EXPECT_TRUE(flags.all().item<bool>());
  });
}

TEST(PretendCommunication, MessagesBetweenTwoRanks) {
  comm::local::run(2, [](const comm::Group& group) {
    const int peer = 1 - group.rank();
    const auto into = full_on(group, 0);
    const auto receiving = group.receive(into, peer);
    group.send(full_on(group, 5.0 + group.rank()).mul(2), peer).wait();
    receiving.wait();
    EXPECT_TRUE(all_are(into, 2 * (5.0 + peer)));
  });
}

// Writes to the memory of a receive as soon as it is posted, as back ends do that receive beside
// the program.
class WritesAtOnce : public comm::GroupImpl {
 public:
  explicit WritesAtOnce(std::shared_ptr<comm::GroupImpl> inner)
      : GroupImpl(inner->info(), inner->lifeline()), inner_(std::move(inner)) {}
  std::unique_ptr<comm::Transfer> send(int peer, uint32_t tag, const void* data,
                                       size_t bytes) override {
    return inner_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<comm::Transfer> receive(int peer, uint32_t tag, void* data,
                                          size_t bytes) override {
    std::memset(data, 0xff, bytes);
    return inner_->receive(peer, tag, data, bytes);
  }

 private:
  const std::shared_ptr<comm::GroupImpl> inner_;
};

// The edge reuses the memory of a tensor only after the device has copied it.
TEST(PretendCommunication, ReceivesIntoADeviceWithoutTheHostWaiting) {
  auto impls = comm::local::make(2);
  for (auto& impl : impls) impl = std::make_shared<WritesAtOnce>(impl);
  const auto body = [](const comm::Group& group) {
    constexpr int kTensors = 10;
    const auto value = [](int i) { return at::full({10'000}, i, at::kFloat); };
    if (group.rank() == 0) {
      const auto edge = group.edge_to(1);
      for (int i = 0; i < kTensors; ++i) edge.send(value(i));
      return;
    }
    std::vector<at::Tensor> into;
    for (int i = 0; i < kTensors; ++i) into.push_back(at::empty({10'000}, device(1)));
    const auto edge = group.edge_from(0);
    reset_counts();
    for (const auto& tensor : into) {
      // Work before the copy, of which each look at an event runs one piece.
      for (int piece = 0; piece < 20; ++piece) tensor.zero_();
      edge.receive_into(tensor);
    }
    EXPECT_EQ(counts().host_waits, 0);
    for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(all_are(into[static_cast<size_t>(i)], i)) << i;
  };
  comm::local::run_ranks(std::move(impls), body, {});
}

// The waiting thread continues while its device copies: only its current stream waits for that.
TEST(PretendCommunication, WaitingOrdersTheStreamThatIsCurrent) {
  comm::local::run(2, [](const comm::Group& group) {
    const auto where = device(group.rank());
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    const auto sum = full_on(group, 1);
    const auto work = group.all_reduce(sum, comm::ReduceOp::sum, {.async_op = true});
    const auto other = guard.getStreamFromGlobalPool(where);
    {
      const c10::StreamGuard on_other(other);
      work.wait();
      EXPECT_FALSE(is_done_already(mark(stream_number(where.index(), other.id()))));
      EXPECT_TRUE(all_are(sum, 2));
    }
  });
}

// At this time, the group's own stream still writes to the tensor.
TEST(PretendCommunication, CallersMayDropTheirTensors) {
  comm::local::run(2, [](const comm::Group& group) {
    auto sum = full_on(group, 1, 7777);
    const auto work = group.all_reduce(sum, comm::ReduceOp::sum, {.async_op = true});
    wait_until_done(work);
    sum.reset();
    EXPECT_TRUE(all_are(full_on(group, 4, 7777), 4));
  });
}

// When a gradient is averaged, the stream on which it was computed is the current one.
TEST(PretendCommunication, HooksRunOnTheStreamOfTheGradients) {
  comm::local::run(2, [](const comm::Group& group) {
    const auto where = device(group.rank());
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    const c10::StreamGuard on_other(guard.getStreamFromGlobalPool(where));
    comm::GradientBucket bucket;
    bucket.flat = full_on(group, 1);
    parallel::HookThread hooks(*group.split(0), [](const comm::Group& own, const auto& given) {
      given.flat.mul_(3);
      own.all_reduce(given.flat, comm::ReduceOp::average);
    });
    hooks.submit(bucket);
    hooks.wait();
    EXPECT_TRUE(all_are(bucket.flat, 3));
  });
}

}  // namespace
}  // namespace troika::pretend
