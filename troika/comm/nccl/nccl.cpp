// NCCL through c10d's process group. If a rank is lost, calls of NCCL may block forever: when they
// connect, start work, or abort. So they run on a thread that can be abandoned, while the calling
// thread watches the deadline and the lifeline.
#include "troika/comm/nccl/nccl.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/comm/algorithms/basic.h"
#include "troika/comm/nccl/detachable_worker.h"
#include "troika/comm/nccl/launch.h"
#include "troika/compat/c10d_nccl.h"
#include "troika/compat/error_text.h"

namespace troika::comm::nccl {

namespace {

// The c10d objects of one group.
struct Connection {
  c10::intrusive_ptr<c10d::TCPStore> store;
  c10::intrusive_ptr<compat::NcclProcessGroup> group;
};

// Work on the device, and the tensors that must stay alive until it has ended.
struct Task {
  Launch launch;
  compat::NcclWork work;
  // Marks the end of everything that the call has queued.
  at::cuda::CUDAEvent end = {};
};

// The host and port of rank 0's store. Sent as raw memory.
struct Address {
  std::array<char, 256> host{};
  int32_t port = 0;
};

// The other nodes look up the host name.
std::string own_host(const GroupInfo& info) {
  if (std::ranges::count(info.nodes, info.nodes.front()) == info.size) return "127.0.0.1";
  std::array<char, sizeof(Address::host)> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

const at::Tensor& buffer(const Call& call) {
  return call.output.defined() ? call.output : call.input;
}

bool on_cuda(const Call& call) {
  return buffer(call).defined() && buffer(call).is_cuda();
}

bool reduces(const Call& call) {
  return call.operation == Operation::all_reduce || call.operation == Operation::reduce ||
         call.operation == Operation::reduce_scatter;
}

bool is_half(c10::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

// Returns the message as one line, without a stack trace.
std::string line_of(const std::exception& error) {
  std::string text = compat::error_text(error);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

GroupInfo info_beside(const GroupImpl& host) {
  GroupInfo info = host.info();
  info.backend += "+nccl";
  info.native_device = c10::kCUDA;
  // Messages of its parts are the host's messages under other tags, even if the host has its own
  // way for its own parts.
  info.can_fail_alone = false;
  return info;
}

class NcclGroup : public GroupImpl {
 public:
  explicit NcclGroup(std::shared_ptr<GroupImpl> host)
      : GroupImpl(info_beside(*host), host->lifeline()), host_(std::move(host)) {}

  ~NcclGroup() override {
    if (!connection().group) return;
    if (lifeline()->is_cut()) {
      give_up(nullptr);
      return;
    }
    // Time for the other ranks to close their group as well.
    constexpr std::chrono::seconds kCloseTime{5};
    const auto closing = worker_->start([c = std::exchange(connection_, {})]() mutable {
      compat::close(*c.group);
      c = {};
    });
    if (closing.wait_for(kCloseTime) != std::future_status::ready) {
      log::warn("[comm] NCCL did not end in {} s, and is left behind", kCloseTime.count());
    }
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return host_->send(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return host_->receive(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    return host_->send_until_received(peer, tag, data, bytes);
  }
  int await_any(uint32_t tag, int first, Deadline deadline) override {
    return host_->await_any(tag, first, deadline);
  }
  at::Tensor allocate(int64_t count, c10::ScalarType type) override {
    return host_->allocate(count, type);
  }

  void verify_call(Channel& channel, const Call& call, Deadline deadline) override {
    if (!on_cuda(call)) return host_->verify_call(channel, call, deadline);
    // Some hosts read the data in verify_call(), which is not possible for device memory.
    Call without_data = call;
    without_data.input = at::Tensor();
    without_data.output = at::Tensor();
    host_->verify_call(channel, without_data, deadline);
  }

  bool try_native(const Call& call, Deadline deadline) override {
    if (!on_cuda(call)) return host_->try_native(call, deadline);
    if (!knows(call)) return false;
    if (call.fingerprint.count == 0) return true;
    const at::NoGradGuard no_grad;
    const c10::cuda::CUDAGuard device(buffer(call).device());
    try {
      connect(call.fingerprint, buffer(call).device(), deadline);
      queued_ = queue(call, deadline);
    } catch (...) {
      give_up(nullptr);
      throw;
    }
    return true;
  }

  std::unique_ptr<DeviceWork> take_queued() override { return std::move(queued_); }

  bool run_within_node(Call call, Deadline deadline) override {
    return host_->run_within_node(std::move(call), deadline);
  }

  std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>&, GroupInfo info,
                                   const std::vector<int>& members, Deadline deadline) override {
    info.backend = host_->info().backend;
    return beside(host_->split(host_, std::move(info), members, deadline));
  }

 private:
  // A call that NCCL carries out on the device.
  class Queued : public DeviceWork {
   public:
    Queued(NcclGroup& group, std::shared_ptr<Task> task) : group_(group), task_(std::move(task)) {}
    bool done() override {
      // Also looks for errors of the connection.
      if (!task_->work->isCompleted()) return false;
      if (const auto failure = task_->work->exception()) group_.explain(failure);
      return task_->end.query();
    }
    void give_up() override { group_.give_up(std::move(task_)); }

   private:
    NcclGroup& group_;
    std::shared_ptr<Task> task_;
  };

  void connect(const CollectiveFingerprint& fingerprint, c10::Device device, Deadline deadline) {
    if (connection().group) {
      if (device == device_) return;
      throw Error("comm", ErrorKind::usage,
                  {.what = "a group's collectives must stay on one CUDA device",
                   .got = device.str(),
                   .expected = device_.str() + ", as in its first one"});
    }
    if (!worker_) worker_ = std::make_unique<DetachableWorker>();
    // The store's timeout, in whole seconds at least; this thread watches the real deadline.
    const Milliseconds time =
        std::clamp(deadline.left(), Milliseconds(1000), Milliseconds(std::chrono::hours(24)));
    const auto made = std::make_shared<Connection>();
    Address address;
    if (rank() == 0) {
      const std::string host = own_host(info());
      std::ranges::copy(host, address.host.begin());
      run([=] { made->store = compat::make_store(host, 0, true, time); }, deadline);
      address.port = made->store->getPort();
    }
    Traffic uncounted;
    Channel channel(*host_, fingerprint);
    tree_broadcast(everyone(channel, deadline, uncounted),
                   {reinterpret_cast<char*>(&address), sizeof(Address)}, 0);
    run(
        [=, rank = rank(), size = size()] {
          if (!made->store) {
            made->store = compat::make_store(address.host.data(), address.port, false, time);
          }
          made->group = compat::make_nccl_group(made->store, rank, size);
        },
        deadline);
    device_ = device;
    const std::lock_guard lock(mutex_);
    connection_ = *made;
  }

  // Queues the call on the current stream. Gives the same results as the host, where halves are
  // reduced in float32 and integer averages do not overflow; NCCL alone would round, or overflow,
  // at each step.
  std::unique_ptr<DeviceWork> queue(const Call& call, Deadline deadline) {
    const bool average = reduces(call) && call.reduce_op == ReduceOp::average;
    const bool half = is_half(call.type);
    const bool widen = reduces(call) && (half || (average && at::isIntegralType(call.type, false)));
    Call wide = call;
    if (widen) {
      const auto type = half ? at::kFloat : at::kLong;
      if (call.input.defined()) wide.input = call.input.to(type);
      wide.output = call.output.to(type);
    }
    auto task = launch(launch_of(wide), deadline);
    if (average) divide(wide.output, size());
    if (widen) call.output.copy_(wide.output);
    task->end.record();
    return std::make_unique<Queued>(*this, std::move(task));
  }

  // Returns when NCCL has queued the work, and the current stream waits for it.
  std::shared_ptr<Task> launch(Launch launch, Deadline deadline) {
    const auto group = connection().group;
    if (!group) {
      lifeline()->require_live();
      throw Error("comm", ErrorKind::failure, {.what = "NCCL was given up after a failure"});
    }
    const auto task = std::make_shared<Task>(Task{std::move(launch), {}});
    run(
        [task, group, stream = c10::cuda::getCurrentCUDAStream()] {
          const c10::cuda::CUDAStreamGuard guard(stream);
          task->work = task->launch(*group);
          task->work->synchronize();
        },
        deadline);
    return task;
  }

  // Runs a call that may block, and waits for it until the deadline.
  void run(std::function<void()> call, Deadline deadline) {
    const auto started = worker_->start(std::move(call));
    await([&] { return DetachableWorker::done(started); }, deadline);
    try {
      started.get();
    } catch (...) {
      explain(std::current_exception());
    }
  }

  template <typename Done>
  void await(Done&& done, Deadline deadline) const {
    constexpr double kSpinSeconds = 1e-3;
    constexpr std::chrono::microseconds kPause{50};
    const Stopwatch waited;
    while (!done()) {
      lifeline()->require_live();
      if (deadline.passed()) {
        throw Error("comm", ErrorKind::timeout, {.what = "NCCL did not finish in time"});
      }
      if (waited.seconds() < kSpinSeconds) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  [[noreturn]] void explain(const std::exception_ptr& failure) const {
    // Often only a consequence of another rank's loss.
    lifeline()->explain_broken_connection();
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      const std::string line = line_of(error);
      if (line.find("Duplicate GPU") != std::string::npos) {
        throw Error("comm", ErrorKind::usage,
                    {.what = "ranks of one group share a CUDA device",
                     .got = line,
                     .expected = "a device for each rank",
                     .hint = "start no more ranks on a node than it has devices"});
      }
      const bool late = line.find("imed out") != std::string::npos;
      throw Error("comm", late ? ErrorKind::timeout : ErrorKind::peer,
                  {.what = "NCCL failed", .got = line});
    }
  }

  Connection connection() {
    const std::lock_guard lock(mutex_);
    return connection_;
  }

  // Aborts all work on the device, and releases the task. Runs outside of `worker_`, whose thread
  // may be blocked. Any thread may call it, more than once.
  void give_up(std::shared_ptr<Task> task) {
    Connection connection;
    {
      const std::lock_guard lock(mutex_);
      connection = std::exchange(connection_, {});
    }
    if (!connection.group && !task) return;
    constexpr Milliseconds kAbortTime{500};
    DetachableWorker aborting;
    aborting
        .start([c = std::move(connection), t = std::move(task)]() mutable {
          if (c.group) compat::abort(*c.group);
          t = nullptr;
          c = {};
        })
        .wait_for(kAbortTime);
  }

  const std::shared_ptr<GroupImpl> host_;
  std::unique_ptr<DetachableWorker> worker_;  // this and the following exist after the first call
                                              // on CUDA tensors
  std::mutex mutex_;
  Connection connection_;  // guarded by mutex_
  c10::Device device_ = c10::kCUDA;
  std::unique_ptr<DeviceWork> queued_;
};

}  // namespace

std::shared_ptr<GroupImpl> beside(std::shared_ptr<GroupImpl> host) {
  if (c10::cuda::device_count() == 0) return host;
  compat::keep_process_on_nccl_failure();
  return std::make_shared<NcclGroup>(std::move(host));
}

}  // namespace troika::comm::nccl
