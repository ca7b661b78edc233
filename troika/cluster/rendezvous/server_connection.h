// A rank's communication with rank 0's server after all ranks have joined: calls, questions and
// events.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cluster/rendezvous/connect.h"
#include "troika/cluster/rendezvous/news_board.h"
#include "troika/cluster/rendezvous/question.h"
#include "troika/cluster/rendezvous/rendezvous_server.h"

namespace troika::cluster {

// An internal thread reads frames, calls the listeners and answers questions. It blocks only on
// incoming frames, and while it reconnects to rank 0 after its relay has ended. It never blocks on
// sending: a server that does not read must not keep this rank from receiving failure notices.
class ServerConnection {
 public:
  using Listener = NewsBoard::Listener;
  using Answerer = std::function<std::string(const std::string& question)>;

  // `server` is set on rank 0 only.
  ServerConnection(std::unique_ptr<RendezvousServer> server, Entrance entrance, Joined joined);
  ~ServerConnection();

  // Sends a call and blocks until its answer. `purpose` completes error messages ("... while
  // <purpose>").
  std::string call(Message message, const std::string& key, const std::string& value,
                   Deadline deadline, const std::string& purpose);
  void leave(const std::string& farewell, Deadline deadline);
  // Returns once the other ranks are being notified, or rank 0 is gone.
  void fail(const std::string& reason, Deadline deadline);
  // `kind` is Message::lost or Message::left.
  void listen(Message kind, Listener listener);
  void on_asked(Answerer answerer);
  Answers ask_all(const std::string& question, Deadline deadline);

  int port() const { return entrance_.port; }
  std::vector<int> relays() const;

 private:
  struct Call {
    Message message;
    std::string frame;
    std::optional<Frame> answer = {};
  };
  // Why rank 0's keys are no longer available.
  struct Cut {
    std::string reason;
    bool was_lost;  // false: rank 0 left
  };
  enum class State { open, leaving, failing, stopping };

  std::string request(Message message, const std::string& key, const std::string& value,
                      Deadline deadline, const std::string& purpose);
  // The caller must hold mutex_.
  void require_usable() const;
  void note(const NewsBoard::News& news);
  void cut(const std::string& reason, bool was_lost);
  void set_relays(int own, const std::string& packed);

  void read_until_stopped();
  // Runs under the rules for callbacks. Returns false for frames that the reader thread must
  // handle.
  bool take_in(const Frame& frame);
  void answer(const Frame& question) noexcept;
  // Handles the end of the connection: reconnects if a relay has ended, otherwise makes later calls
  // fail.
  void go_on_without(const std::string& reason);
  bool return_to_server();
  void tell_listeners();
  Error gone_error(const std::string& purpose) const;

  const std::unique_ptr<RendezvousServer> server_;  // rank 0 only
  const Entrance entrance_;
  const std::unique_ptr<Line> line_;
  std::atomic<uint64_t> next_call_ = 0;  // also numbers questions

  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable answered_;
  std::map<uint64_t, Call> calls_;
  std::map<std::string, Question> questions_;
  NewsBoard board_;
  Answerer answerer_;
  std::vector<int> relays_;  // by rank: its relay; 0 for none
  std::optional<Cut> cut_;
  State state_ = State::open;

  std::thread reader_;
};

}  // namespace troika::cluster
