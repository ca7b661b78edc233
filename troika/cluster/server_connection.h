// A rank's talk with rank 0's server once all ranks are there: calls, questions, and news.
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
#include "troika/cluster/connect.h"
#include "troika/cluster/news_board.h"
#include "troika/cluster/question.h"
#include "troika/cluster/rendezvous_server.h"

namespace troika::cluster {

// One internal thread reads, tells the listeners and answers. It never waits but for frames, and
// for the way back to rank 0 when its relay has ended: were it blocked by a server that does not
// read, this rank would miss the news.
class ServerConnection {
 public:
  using Listener = NewsBoard::Listener;
  using Answerer = std::function<std::string(const std::string& question)>;

  // `server` is rank 0's own.
  ServerConnection(std::unique_ptr<RendezvousServer> server, Entrance entrance, Joined joined);
  ~ServerConnection();

  // Sends a call and waits for its answer; `purpose` ends the sentences of its errors.
  std::string call(Message message, const std::string& key, const std::string& value,
                   Deadline deadline, const std::string& purpose);
  void leave(const std::string& farewell, Deadline deadline);
  // Returns when the others are being told, or rank 0 is gone.
  void fail(const std::string& reason, Deadline deadline);
  // To Message::lost or Message::left.
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
  // The end of the keys for this rank.
  struct Cut {
    std::string reason;
    bool was_lost;  // else rank 0 left
  };
  enum class State { open, leaving, failing, stopping };

  std::string request(Message message, const std::string& key, const std::string& value,
                      Deadline deadline, const std::string& purpose);
  // The caller of these holds mutex_.
  void require_usable() const;
  void note(const NewsBoard::News& news);
  void cut(const std::string& reason, bool was_lost);
  void set_relays(int own, const std::string& packed);

  void read_until_stopped();
  // Runs under the rules for callbacks; whether nothing is left to do for the reader.
  bool take_in(const Frame& frame);
  void answer(const Frame& question) noexcept;
  // The connection has ended.
  void go_on_without(const std::string& reason);
  bool return_to_server();
  void tell_listeners();
  Error gone_error(const std::string& purpose) const;

  const std::unique_ptr<RendezvousServer> server_;  // rank 0 only
  const Entrance entrance_;
  const std::unique_ptr<Line> line_;
  std::atomic<uint64_t> next_call_ = 0;  // and question

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable answered_;
  std::map<uint64_t, Call> calls_;
  std::map<std::string, Question> questions_;
  NewsBoard board_;
  Answerer answerer_;
  std::vector<int> relays_;  // by rank: who relays for it; 0 for nobody
  std::optional<Cut> cut_;
  State state_ = State::open;

  std::thread reader_;
};

}  // namespace troika::cluster
