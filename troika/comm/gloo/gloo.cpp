// Back end `gloo`: processes connected by TCP through LibTorch's c10d.
//
// Uses only Gloo's messages. Its collectives lack operations and dtypes, reduce non-contiguous
// tensors in storage order, and end the process when sizes differ.
#include <fmt/format.h>

#include <gloo/common/error.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <type_traits>

#include "troika/base/error.h"
#include "troika/comm/messages/backend.h"
#include "troika/compat/c10d.h"
#include "troika/net/socket.h"

namespace troika::comm::gloo {

namespace {

using compat::GlooProcessGroup;

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// c10d interprets zero as "no timeout", and adds the timeout to the clock, so it is bounded here.
Milliseconds time_left(Deadline deadline) {
  return std::clamp<Milliseconds>(deadline.left(), Milliseconds(1), std::chrono::hours(24));
}

at::Tensor bytes_at(void* data, size_t bytes) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

class GlooGroup : public GroupImpl {
 public:
  GlooGroup(GroupInfo info, std::shared_ptr<Lifeline> lifeline,
            c10::intrusive_ptr<c10d::TCPStore> store, c10::intrusive_ptr<GlooProcessGroup> group)
      : GroupImpl(std::move(info), std::move(lifeline)),
        store_(std::move(store)),
        group_(std::move(group)) {
    this->lifeline()->wake_with(this, [this] { abort_waits(); });
  }
  ~GlooGroup() override {
    lifeline()->leave();
    lifeline()->wake_with(this, nullptr);
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    std::vector<at::Tensor> buffers{bytes_at(const_cast<void*>(data), bytes)};
    return std::make_unique<GlooTransfer>(*this, peer, guarded(peer, [&] {
      return group_->send(buffers, peer, sized_tag(tag, bytes));
    }));
  }

  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    if (is_edge(tag)) return std::make_unique<LateReceive>(*this, peer, tag, data, bytes);
    at::Tensor scratch;
    if (is_message(tag)) scratch = at::empty({int64_t{1} << size_class(bytes)}, at::kByte);
    std::vector<at::Tensor> buffers{scratch.defined() ? scratch : bytes_at(data, bytes)};
    auto work = guarded(peer, [&] { return group_->recv(buffers, peer, sized_tag(tag, bytes)); });
    return std::make_unique<GlooTransfer>(*this, peer, std::move(work), std::move(scratch), data,
                                          bytes);
  }

  // Sends a copy, because the receiver posts its receive late.
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    std::vector<at::Tensor> buffers{bytes_at(const_cast<void*>(data), bytes).clone()};
    return std::make_unique<CopiedSend>(*this, peer, guarded(peer, [&] {
      return group_->send(buffers, peer, sized_tag(tag, bytes));
    }));
  }

 private:
  class GlooTransfer : public Transfer {
   public:
    GlooTransfer(GlooGroup& group, int peer, compat::GlooWork work, at::Tensor scratch = {},
                 void* data = nullptr, size_t bytes = 0)
        : group_(group),
          peer_(peer),
          work_(std::move(work)),
          scratch_(std::move(scratch)),
          data_(data),
          bytes_(bytes) {}
    void wait(Deadline deadline) override {
      group_.wait(peer_, work_, deadline);
      if (scratch_.defined() && bytes_ > 0) std::memcpy(data_, scratch_.data_ptr(), bytes_);
    }

   private:
    GlooGroup& group_;
    const int peer_;
    const compat::GlooWork work_;
    const at::Tensor scratch_;  // receive buffer if the size is uncertain
    void* const data_;
    const size_t bytes_;
  };

  class CopiedSend : public GlooTransfer {
   public:
    using GlooTransfer::GlooTransfer;
    bool has_copied() override { return true; }
  };

  // Gloo cannot cancel a receive, so a receive of an edge begins when it is waited for. Its message
  // stays at the sender until then.
  class LateReceive : public Transfer {
   public:
    LateReceive(GlooGroup& group, int peer, uint32_t tag, void* data, size_t bytes)
        : group_(group), peer_(peer), tag_(tag), data_(data), bytes_(bytes) {}
    void wait(Deadline deadline) override {
      std::vector<at::Tensor> buffers{bytes_at(data_, bytes_)};
      const auto work = group_.guarded(
          peer_, [&] { return group_.group_->recv(buffers, peer_, static_cast<int>(tag_)); });
      group_.wait(peer_, work, deadline);
    }

   private:
    GlooGroup& group_;
    const int peer_;
    const uint32_t tag_;
    void* const data_;
    const size_t bytes_;
  };

  // Gloo ends the process when a message is larger than its receive buffer. Ranks agree on the
  // sizes of collectives first. The tag of a message between two ranks includes a size class, so a
  // receive matches only messages of a similar size; its buffer has room for the largest of them.
  static uint32_t size_class(size_t bytes) { return static_cast<uint32_t>(std::bit_width(bytes)); }
  static int sized_tag(uint32_t tag, size_t bytes) {
    constexpr int kClassBit = 25;  // above the bits of the tag space
    return static_cast<int>(is_message(tag) ? tag | size_class(bytes) << kClassBit : tag);
  }

  void wait(int peer, const compat::GlooWork& work, Deadline deadline) {
    // Listed first, so that a loss either is seen here or aborts the wait.
    const Listed listed(*this, work);
    lifeline()->require_live();
    const bool complete = guarded(peer, [&] { return work->wait(time_left(deadline)); });
    if (!complete) lifeline()->require_live();
  }

  // Runs a call of c10d and converts its exceptions to Error.
  template <typename Call>
  std::invoke_result_t<Call> guarded(int peer, Call&& call) const {
    try {
      return call();
    } catch (const std::exception& error) {
      const std::string line = first_line(error);
      if (line.find("imed out") != std::string::npos) {
        throw Error(
            "comm", ErrorKind::timeout,
            {.what = fmt::format("no message from {} in time", rank_name(peer)), .got = line});
      }
      // Often only a consequence of another rank's loss.
      lifeline()->explain_broken_connection();
      throw Error("comm", ErrorKind::peer,
                  {.what = fmt::format("lost the connection to {}", rank_name(peer)), .got = line});
    }
  }

  // Registers a transfer so that abort_waits() can end it.
  class Listed {
   public:
    Listed(GlooGroup& group, const compat::GlooWork& work) : group_(group) {
      const std::lock_guard lock(group_.waits_mutex_);
      place_ = group_.waits_.insert(group_.waits_.end(), work);
    }
    ~Listed() {
      const std::lock_guard lock(group_.waits_mutex_);
      group_.waits_.erase(place_);
    }
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;

   private:
    GlooGroup& group_;
    std::list<compat::GlooWork>::iterator place_;
  };

  void abort_waits() {
    const std::lock_guard lock(waits_mutex_);
    for (const auto& work : waits_) work->abort();
  }

  std::mutex waits_mutex_;
  std::list<compat::GlooWork> waits_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  c10::intrusive_ptr<GlooProcessGroup> group_;
};

// Returns the network device: the interface in GLOO_SOCKET_IFNAME; loopback if all ranks are on
// this machine (the host name may resolve to an address that no peer can reach); otherwise the
// address that the host name resolves to.
std::shared_ptr<::gloo::transport::Device> make_device(const cluster::Environment& environment) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME")) {
    try {
      return GlooProcessGroup::createDeviceForInterface(name);
    } catch (const std::exception& error) {
      throw Error("comm", ErrorKind::usage,
                  {.what = "gloo cannot use the network interface of GLOO_SOCKET_IFNAME",
                   .got = name,
                   .expected = "the name of an interface of this machine, as ip address shows"});
    }
  }
  const bool is_local = environment.num_nodes == 1 || net::is_loopback(environment.master_address);
  if (is_local) return GlooProcessGroup::createDeviceForHostname("127.0.0.1");
  return GlooProcessGroup::createDefaultDevice();
}

std::shared_ptr<GroupImpl> connect(const Meeting& meeting, Deadline deadline) {
  constexpr const char* kPortKey = "comm/gloo/port";
  const auto& environment = meeting.environment;
  const auto left = [&] { return time_left(deadline); };
  auto options = GlooProcessGroup::Options::create(left());
  options->devices.push_back(make_device(environment));
  const std::string& host = environment.master_address;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (environment.rank == 0) {
    store = compat::make_store(host, 0, true, left());
    meeting.rendezvous->set(kPortKey, std::to_string(store->getPort()));
  } else {
    const int port = std::stoi(meeting.rendezvous->get(kPortKey, deadline));
    store = compat::make_store(host, port, false, left());
  }
  auto group = c10::make_intrusive<GlooProcessGroup>(store, environment.rank,
                                                     environment.world_size, options);
  return std::make_shared<GlooGroup>(meeting.group_info("gloo"), meeting.lifeline, std::move(store),
                                     std::move(group));
}

}  // namespace

std::string why_unavailable() {
  return {};
}

std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline) {
  try {
    return connect(meeting, deadline);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    meeting.lifeline->explain_broken_connection();
    throw Error("comm", ErrorKind::timeout,
                {.what = "gloo could not connect the ranks in time", .got = first_line(error)});
  } catch (const std::exception& error) {
    // A rank that was connected before this one may have failed since.
    meeting.lifeline->explain_broken_connection();
    throw Error("comm", ErrorKind::peer,
                {.what = "gloo could not connect the ranks", .got = first_line(error)});
  }
}

}  // namespace troika::comm::gloo
