// A rank's end of the control connection once it is up: calls to rank 0's server, and news from it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/connect.h"
#include "troika/cluster/rendezvous_server.h"

namespace troika::cluster {

// The calling threads send; one internal thread reads and tells the listeners.
class ServerConnection {
 public:
  using LossListener = std::function<void(int rank, const std::string& reason)>;

  ServerConnection(std::unique_ptr<RendezvousServer> server, int port, Connected connected);
  ~ServerConnection();

  // Sends a call and waits for its answer; `purpose` ends the sentences of its errors.
  std::string call(Message message, const std::string& key, const std::string& value,
                   Deadline deadline, const std::string& purpose);
  void leave(Deadline deadline);
  void listen(LossListener listener);

  int port() const { return port_; }

 private:
  struct Loss {
    int rank;
    std::string reason;
  };
  struct Listener {
    LossListener call;
    size_t next_loss = 0;
  };

  void read_until_stopped();
  void take_in(const Frame& frame);
  void cut(const std::string& reason, bool lost);
  void tell_listeners();
  Error gone_error(const std::string& purpose) const;

  const std::unique_ptr<RendezvousServer> server_;  // rank 0 only
  const int port_;
  const Descriptor socket_;
  Decoder in_;  // the reading thread's own
  Waker wake_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // guards all below
  std::condition_variable answered_;
  std::map<uint64_t, std::optional<Frame>> calls_;
  uint64_t next_call_ = 0;
  std::vector<Loss> losses_;
  std::vector<Listener> listeners_;
  std::optional<std::string> cut_;  // why there is no server any more
  bool bye_ = false;                // rank 0 said so before
  bool left_ = false;
  bool stopping_ = false;

  std::thread reader_;
};

}  // namespace troika::cluster
