// A rank's end of the control connection once it is up: calls to rank 0's server, and news from it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/connect.h"
#include "troika/cluster/environment.h"
#include "troika/cluster/outbox.h"
#include "troika/cluster/rendezvous_server.h"

namespace troika::cluster {

// One internal thread reads, tells the listeners and answers. It never waits but in its poll():
// were it blocked by a server that does not read, its rank would be deaf.
class ServerConnection {
 public:
  using Listener = std::function<void(int rank, const std::string& text)>;
  using Answerer = std::function<std::string(const std::string& question)>;

  ServerConnection(std::unique_ptr<RendezvousServer> server, const Environment& environment,
                   int port, Connected connected);
  ~ServerConnection();

  // Sends a call and waits for its answer; `purpose` ends the sentences of its errors.
  std::string call(Message message, const std::string& key, const std::string& value,
                   Deadline deadline, const std::string& purpose);
  void leave(const std::string& farewell, Deadline deadline);
  // Of Message::lost or Message::left.
  void listen(Message kind, Listener listener);
  void on_asked(Answerer answerer);
  std::vector<std::optional<std::string>> ask_all(const std::string& question, Deadline deadline);

  int port() const { return port_; }

 private:
  struct News {
    Message kind;  // lost or left
    int rank;
    std::string text;
  };
  struct Subscription {
    Message kind;
    Listener tell;
    size_t next = 0;  // of news_
  };
  struct Inquiry {
    std::vector<std::optional<std::string>> answers;
    std::set<int> open;  // ranks that may still answer
  };

  std::string request(Message message, const std::string& key, const std::string& value,
                      Deadline deadline, const std::string& purpose);
  // The caller holds mutex_.
  void require_usable() const;
  void note(const News& news);

  void post(std::string_view bytes);
  bool flush();
  void read_until_stopped();
  void take_in(const Frame& frame);
  void answer(const Frame& question) noexcept;
  void cut(const std::string& reason, bool lost);
  void tell_listeners();
  Error gone_error(const std::string& purpose) const;

  const std::unique_ptr<RendezvousServer> server_;  // rank 0 only
  const int rank_, world_size_;
  const int port_;
  const net::Descriptor socket_;
  net::Opener opener_;  // the reading thread's own, and in_
  Decoder in_;
  net::Waker wake_;

  std::atomic<uint64_t> next_call_ = 0;  // and inquiry

  std::mutex out_mutex_;
  net::Sealer sealer_;
  Outbox out_;

  std::mutex mutex_;  // guards all below
  std::condition_variable answered_;
  std::map<uint64_t, std::optional<Frame>> calls_;
  std::map<std::string, Inquiry> inquiries_;
  std::vector<News> news_;
  std::set<int> gone_;  // ranks of news_
  std::vector<Subscription> subscriptions_;
  Answerer answerer_;
  std::optional<std::string> cut_;  // why there is no server any more
  bool bye_ = false;                // rank 0 said so before
  bool left_ = false;
  bool stopping_ = false;

  std::thread reader_;
};

}  // namespace troika::cluster
