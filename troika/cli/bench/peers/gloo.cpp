// LibTorch's own ProcessGroupGloo, as torch.distributed uses it.
#include <algorithm>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cli/bench/peers/peer.h"
#include "troika/compat/c10d.h"

namespace troika::cli::bench::gloo {

namespace {

// All ranks are on this machine, whose host name may resolve to an unreachable address.
constexpr const char* kLoopback = "127.0.0.1";

class GlooPeer : public Peer {
 public:
  explicit GlooPeer(const comm::Group& control) {
    const auto timeout = control.options().timeout;
    const bool serves = control.rank() == 0;
    if (serves) store_ = compat::make_store(kLoopback, 0, true, timeout);
    const auto port = parse_int(
        control.broadcast_text(serves ? std::to_string(store_->getPort()) : "", 0, "c10d store"));
    TROIKA_CHECK(port, "rank 0 told the store's port");
    if (!serves) {
      store_ = compat::make_store(kLoopback, static_cast<int>(*port), false, timeout);
    }
    auto options = compat::GlooProcessGroup::Options::create(timeout);
    options->devices.push_back(compat::GlooProcessGroup::createDeviceForHostname(kLoopback));
    group_ = c10::make_intrusive<compat::GlooProcessGroup>(store_, control.rank(), control.size(),
                                                           options);
  }

  std::string version() const override { return {}; }

  void all_reduce(at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{tensor};
    const compat::GlooWork work = group_->allreduce(tensors);
    work->wait();
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  c10::intrusive_ptr<compat::GlooProcessGroup> group_;
};

}  // namespace

std::string why_unavailable() {
  return {};
}

std::unique_ptr<Peer> make(const comm::Group& control) {
  return std::make_unique<GlooPeer>(control);
}

}  // namespace troika::cli::bench::gloo
