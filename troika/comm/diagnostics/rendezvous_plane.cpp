#include "troika/comm/diagnostics/rendezvous_plane.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::comm {

namespace {

// Part of the second after a timeout, see Group. The notice has been sent by then; it stays
// unconfirmed only if rank 0 is stopped and relays nothing.
constexpr Milliseconds kTellTime{100};

class RendezvousPlane : public ControlPlane {
 public:
  explicit RendezvousPlane(std::shared_ptr<cluster::Rendezvous> rendezvous)
      : rendezvous_(std::move(rendezvous)) {}

  void listen(Listener listener) override {
    rendezvous_->on_asked(std::move(listener.answer));
    rendezvous_->on_peer_left(std::move(listener.left));
    rendezvous_->on_peer_lost(std::move(listener.lost));
  }
  void fail(const std::string& why) override { rendezvous_->fail(why, Deadline::after(kTellTime)); }
  void leave(const std::string& farewell) override {
    try {
      rendezvous_->leave(farewell);
    } catch (const Error& error) {
      log::warn("[comm] could not leave the other ranks: {}", error.what());
    }
  }
  cluster::Answers ask_all(const std::string& question, Deadline deadline) override {
    try {
      return rendezvous_->ask_all(question, deadline);
    } catch (const std::exception&) {
      return {};  // this rank has left in the meantime
    }
  }

 private:
  const std::shared_ptr<cluster::Rendezvous> rendezvous_;
};

}  // namespace

std::unique_ptr<ControlPlane> make_control_plane(std::shared_ptr<cluster::Rendezvous> rendezvous) {
  return std::make_unique<RendezvousPlane>(std::move(rendezvous));
}

}  // namespace troika::comm
