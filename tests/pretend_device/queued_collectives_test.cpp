// Collectives that a back end only queues on the device, as nccl does: the host does not wait.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/pretend_device/pretend_device.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::pretend {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// The state of the work of all ranks, which the test reads and changes.
struct Device {
  std::atomic<bool> is_done = false;            // the result of DeviceWork::done()
  std::array<std::atomic<bool>, 2> fails = {};  // by rank
  std::atomic<int> works = 0;                   // that exist
  std::atomic<int> given_up = 0;
};

class Queued : public comm::DeviceWork {
 public:
  Queued(Device& device, int rank) : device_(device), rank_(rank) { ++device_.works; }
  ~Queued() override { --device_.works; }
  bool done() override {
    if (device_.fails.at(static_cast<size_t>(rank_))) {
      throw Error("comm", ErrorKind::peer, {.what = "the device lost its connection"});
    }
    return device_.is_done;
  }
  void give_up() override { ++device_.given_up; }

 private:
  Device& device_;
  const int rank_;
};

// Sums tensors that are the same on all ranks, on the current stream.
class QueuingGroup : public comm::GroupImpl {
 public:
  QueuingGroup(std::shared_ptr<comm::GroupImpl> host, Device& device)
      : GroupImpl(info_beside(*host), host->lifeline()), host_(std::move(host)), device_(device) {}

  std::unique_ptr<comm::Transfer> send(int peer, uint32_t tag, const void* data,
                                       size_t bytes) override {
    return host_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<comm::Transfer> receive(int peer, uint32_t tag, void* data,
                                          size_t bytes) override {
    return host_->receive(peer, tag, data, bytes);
  }
  bool try_native(const comm::Call& call, Deadline) override {
    if (!call.output.defined() || call.output.is_cpu()) return false;
    call.output.mul_(size());
    queued_ = std::make_unique<Queued>(device_, rank());
    return true;
  }
  std::unique_ptr<comm::DeviceWork> take_queued() override { return std::move(queued_); }

 private:
  static comm::GroupInfo info_beside(const comm::GroupImpl& host) {
    auto info = host.info();
    info.native_device = c10::kPrivateUse1;
    return info;
  }

  const std::shared_ptr<comm::GroupImpl> host_;
  Device& device_;
  std::unique_ptr<comm::DeviceWork> queued_;
};

void run_queuing(Device& device, const std::function<void(comm::Group)>& body,
                 const comm::GroupOptions& options = {.timeout = Milliseconds(3000)}) {
  auto impls = comm::local::make(2);
  for (auto& impl : impls) impl = std::make_shared<QueuingGroup>(impl, device);
  comm::local::run_ranks(std::move(impls), body, options);
}

at::Tensor ones_on(const comm::Group& group) {
  return at::ones({1000}, at::TensorOptions().device(device(group.rank())).dtype(at::kFloat));
}

bool holds_only(const at::Tensor& tensor, double value) {
  return tensor.eq(value).all().item<bool>();
}

// Whether the work that is queued on this thread's current stream is done.
bool is_idle(const comm::Group& group) {
  return is_done_already(mark(current_stream(group.rank())));
}

void wait_until(const std::function<bool()>& is_over) {
  while (!is_over()) std::this_thread::yield();
}

TEST(QueuedCollectives, OrderTheCallersStreamAndNotTheHost) {
  Device of_all;
  run_queuing(of_all, [&](const comm::Group& group) {
    const auto sum = ones_on(group);
    const auto work = group.all_reduce(sum, comm::ReduceOp::sum, {.async_op = true});
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_FALSE(is_idle(group));
    sum.add_(1);
    group.all_reduce(sum);  // on this thread, as its caller waits for it
    EXPECT_FALSE(is_idle(group));
    EXPECT_TRUE(holds_only(sum, 6));
    group.barrier();
    of_all.is_done = true;
  });
  EXPECT_EQ(of_all.works, 0);
  EXPECT_EQ(of_all.given_up, 0);
}

TEST(QueuedCollectives, AreKeptUntilTheDeviceHasFinished) {
  Device of_all;
  run_queuing(of_all, [&](const comm::Group& group) {
    for (int i = 0; i < 3; ++i) group.all_reduce(ones_on(group));
    group.barrier();
    EXPECT_EQ(of_all.works, 6);
    group.barrier();
    of_all.is_done = true;
    wait_until([&] { return of_all.works == 0; });
  });
}

TEST(QueuedCollectives, ADeviceThatIsLateFailsTheGroup) {
  Device of_all;
  run_queuing(of_all,
              [&](const comm::Group& group) {
                group.all_reduce(ones_on(group));
                wait_until([&] { return of_all.given_up == 2; });
                EXPECT_THAT([&] { group.barrier(); },
                            ThrowsMessage<Error>(HasSubstr("all_reduce #0")));
              },
              {.timeout = Milliseconds(200)});
  EXPECT_EQ(of_all.works, 0);
}

TEST(QueuedCollectives, AFailureOnTheDeviceFailsTheGroup) {
  Device of_all;
  for (auto& fails : of_all.fails) fails = true;
  run_queuing(of_all, [&](const comm::Group& group) {
    group.all_reduce(ones_on(group));
    wait_until([&] { return of_all.given_up == 2; });
    EXPECT_THAT([&] { group.barrier(); },
                ThrowsMessage<Error>(HasSubstr("the device lost its connection")));
  });
  EXPECT_EQ(of_all.works, 0);
}

TEST(QueuedCollectives, ThatAreGivenUpAfterAnotherOnesFailureAreRecordedAsFailed) {
  const TemporaryFolder folder;
  Device of_all;
  run_queuing(of_all,
              [&](const comm::Group& group) {
                for (int i = 0; i < 3; ++i) group.all_reduce(ones_on(group));
                group.barrier();
                if (group.rank() == 0) of_all.fails.front() = true;
                wait_until([&] { return of_all.given_up == 6; });
              },
              {.timeout = Milliseconds(3000), .flight_record = folder.path()});
  const auto record = nlohmann::json::parse(read_file(folder / "world-rank0.json"));
  std::vector<std::string> states;
  for (const auto& call : record.at("calls")) states.push_back(call.at("state"));
  EXPECT_THAT(states, testing::ElementsAre("failed", "failed", "failed", "finished"));
}

}  // namespace
}  // namespace troika::pretend
