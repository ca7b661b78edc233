// Back end `gloo`: processes connected by TCP through LibTorch's c10d.
//
// Only Gloo's messages are used. Its collectives lack operations and types, reduce non-contiguous
// tensors in storage order, and end the process when sizes differ.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "troika/base/error.h"
#include "troika/cluster/rendezvous.h"
#include "troika/comm/backend.h"
#include "troika/compat/c10d.h"

namespace troika::comm::gloo {

namespace {

using compat::GlooProcessGroup;

// Runs a call of c10d and turns what it throws into our errors.
template <typename Call>
auto guarded(int peer, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string line = text.substr(0, text.find('\n'));
    if (text.find("imed out") != std::string::npos) {
      throw Error("comm", ErrorKind::timeout,
                  {.what = fmt::format("no message from rank {} in time", peer), .got = line});
    }
    throw Error("comm", ErrorKind::peer,
                {.what = fmt::format("lost the connection to rank {}", peer), .got = line});
  }
}

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(int peer, at::Tensor buffer, compat::GlooWork work)
      : peer_(peer), buffer_(std::move(buffer)), work_(std::move(work)) {}

  void wait(Deadline deadline) override {
    // Zero would mean "no time-out" to c10d.
    const auto left = std::max(Milliseconds(1), deadline.left());
    guarded(peer_, [&] { return work_->wait(left); });
  }

 private:
  int peer_;
  at::Tensor buffer_;
  compat::GlooWork work_;
};

at::Tensor bytes_at(void* data, size_t bytes) {
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

class GlooGroup : public GroupImpl {
 public:
  GlooGroup(std::shared_ptr<cluster::Rendezvous> rendezvous,
            c10::intrusive_ptr<c10d::TCPStore> store, c10::intrusive_ptr<GlooProcessGroup> group)
      : rendezvous_(std::move(rendezvous)), store_(std::move(store)), group_(std::move(group)) {
    rank_ = group_->getRank();
    size_ = group_->getSize();
  }
  ~GlooGroup() override {
    if (rendezvous_) rendezvous_->leave();
  }

  std::string_view backend() const override { return "gloo"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    std::vector<at::Tensor> buffers{bytes_at(const_cast<void*>(data), bytes)};
    auto work = guarded(peer, [&] { return group_->send(buffers, peer, static_cast<int>(tag)); });
    return std::make_unique<GlooTransfer>(peer, buffers.front(), std::move(work));
  }

  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    std::vector<at::Tensor> buffers{bytes_at(data, bytes)};
    auto work = guarded(peer, [&] { return group_->recv(buffers, peer, static_cast<int>(tag)); });
    return std::make_unique<GlooTransfer>(peer, buffers.front(), std::move(work));
  }

  // Closing the connections wakes whoever waits for this rank.
  void abandon(const std::string&) override {
    rendezvous_.reset();
    group_.reset();
  }

 private:
  int rank_;
  int size_;
  std::shared_ptr<cluster::Rendezvous> rendezvous_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  c10::intrusive_ptr<GlooProcessGroup> group_;
};

// The network device: the named interface, loopback on a single node (a hostname may resolve to an
// address no peer can reach), else whatever the hostname resolves to.
std::shared_ptr<::gloo::transport::Device> make_device(const cluster::Environment& environment) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME")) {
    return GlooProcessGroup::createDeviceForInterface(name);
  }
  if (environment.num_nodes == 1) return GlooProcessGroup::createDeviceForHostname("127.0.0.1");
  return GlooProcessGroup::createDefaultDevice();
}

}  // namespace

std::string why_unavailable() {
  return {};
}

std::unique_ptr<GroupImpl> make(const cluster::Environment& environment, Deadline deadline) {
  auto rendezvous = cluster::Rendezvous::join(environment, deadline);
  constexpr const char* kPortKey = "comm/gloo/port";
  const std::string& host = environment.master_address;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (environment.rank == 0) {
    store = compat::make_store(host, 0, true, deadline.left());
    rendezvous->set(kPortKey, std::to_string(store->getPort()));
  } else {
    const int port = std::stoi(rendezvous->get(kPortKey, deadline));
    store = compat::make_store(host, port, false, deadline.left());
  }
  auto options = GlooProcessGroup::Options::create(deadline.left());
  options->devices.push_back(make_device(environment));
  auto group = c10::make_intrusive<GlooProcessGroup>(store, environment.rank,
                                                     environment.world_size, options);
  return std::make_unique<GlooGroup>(std::move(rendezvous), std::move(store), std::move(group));
}

}  // namespace troika::comm::gloo
