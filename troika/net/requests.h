// Questions with answers, over messages of any endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "troika/net/endpoint.h"

namespace troika::net {

// Sends the answer to one question. It may be called later and by any thread; nothing happens when
// the peer is no longer connected. Only the first call counts. The endpoint must outlive it.
using Answer = std::function<void(std::string answer)>;
// Runs under the rules for callbacks of Endpoint. Where messages are repeated on their way, which
// TcpEndpoint does not, it sees a question more than once.
using Answerer = std::function<void(const std::string& peer, std::string question, Answer answer)>;
// `answer` is empty unless the result is `done`.
using Answered = std::function<void(const Result& result, std::string answer)>;

// Both ends have one of these for the same channel; it takes that channel and the next. The
// endpoint must outlive it. Its functions may be called by any thread.
class Requests {
 public:
  // Questions and answers are of at most `most` bytes: longer ones are lost to their deadline.
  Requests(Endpoint& endpoint, Channel channel, size_t most);
  // Questions that are open get no result.
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  void answer_with(Answerer answerer);
  // Asks; `answered` runs once, under the rules for callbacks: `done`, `timeout` when no answer
  // has come within that time, `lost` when the peer could not be reached.
  void ask(const std::string& peer, std::string_view question, Duration within, Answered answered,
           Priority priority = Priority::normal);

 private:
  struct Open;

  void take_question(const std::string& peer, const std::string& message);
  void take_answer(const std::string& peer, std::string message);

  Endpoint& endpoint_;
  const Channel channel_;
  const size_t most_;
  const std::shared_ptr<Open> open_;
};

}  // namespace troika::net
