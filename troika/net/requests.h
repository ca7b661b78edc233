// Requests with answers, over the messages of any endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "troika/net/endpoint.h"

namespace troika::net {

// Sends the answer to one question. May be called later and by any thread. Does nothing if the peer
// is no longer connected; only the first call has an effect. The endpoint must outlive it.
using Answer = std::function<void(std::string answer)>;
// Runs under Endpoint's rules for callbacks. A transport that repeats messages (TcpEndpoint does
// not) may deliver a question more than once.
using Answerer = std::function<void(const std::string& peer, std::string question, Answer answer)>;
// `answer` is empty unless the outcome is `done`.
using Answered = std::function<void(const Result& result, std::string answer)>;

// Both ends need a Requests with the same channel; it uses that channel and the next one. The
// endpoint must outlive it. Any thread may call its functions.
class Requests {
 public:
  // `most`: the maximum size of questions and answers in bytes. A longer one is not delivered, and
  // its question ends with `timeout`, or with `too_long` for a question of more than 257 KiB.
  Requests(Endpoint& endpoint, Channel channel, size_t most);
  // Open questions get no result.
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  void answer_with(Answerer answerer);
  // Asks a question. `answered` runs once, under the rules for callbacks, with the outcome `done`;
  // `timeout` if no answer came within `within`; or `lost` if the peer could not be reached.
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
