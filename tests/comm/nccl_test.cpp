// The part of the nccl back end that needs no GPU: a call that never returns blocks no other
// thread.
#include <gmock/gmock.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

#include "troika/comm/nccl/detachable_worker.h"

namespace troika::comm::nccl {
namespace {

TEST(NcclDetachableWorker, RunsCallsInOrder) {
  std::vector<int> order;
  DetachableWorker worker;
  worker.start([&] { order.push_back(1); });
  worker.start([&] { order.push_back(2); }).wait();
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
}

TEST(NcclDetachableWorker, HandsOverWhatTheyThrow) {
  DetachableWorker worker;
  const auto failing = worker.start([] { throw std::runtime_error("no"); });
  EXPECT_THROW(failing.get(), std::runtime_error);
  EXPECT_NO_THROW(worker.start([] {}).get());
}

TEST(NcclDetachableWorker, LeavesBehindWhatIsStuckWithAllItHolds) {
  std::promise<void> release;
  const auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = held;
  std::shared_future<void> stuck;
  {
    DetachableWorker worker;
    stuck =
        worker.start([released = release.get_future().share(), mine = held] { released.wait(); });
    EXPECT_FALSE(DetachableWorker::done(stuck));
  }
  EXPECT_FALSE(DetachableWorker::done(stuck));
  EXPECT_EQ(watched.use_count(), 2);
  release.set_value();
  stuck.wait();
}

}  // namespace
}  // namespace troika::comm::nccl
