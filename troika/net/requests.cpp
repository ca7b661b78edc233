#include "troika/net/requests.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "troika/net/bytes.h"

namespace troika::net {

namespace {

constexpr size_t kNumber = 8;  // bytes of the number that precedes each question and its answer

std::shared_ptr<const std::string> with_number(uint64_t number, std::string_view text) {
  auto message = std::make_shared<std::string>(kNumber, '\0');
  put(message->data(), number);
  message->append(text);
  return message;
}

}  // namespace

// The open questions. Timers and sends share it, and may outlive the Requests.
struct Requests::Open {
  struct Question {
    std::string peer;
    Ticket timer = 0;
    Answered answered;
  };

  // Removes and returns a question; `answered` is empty if the question already has its result.
  Question take(uint64_t number) {
    const std::lock_guard lock(mutex);
    auto node = questions.extract(number);
    return node.empty() ? Question{} : std::move(node.mapped());
  }

  std::mutex mutex;
  std::unordered_map<uint64_t, Question> questions;
  uint64_t last = 0;
  Answerer answerer;
};

Requests::Requests(Endpoint& endpoint, Channel channel, size_t most)
    : endpoint_(endpoint), channel_(channel), most_(most), open_(std::make_shared<Open>()) {
  endpoint_.handle(channel_ + 1, kNumber + most_, [this](const std::string& peer, std::string m) {
    take_answer(peer, std::move(m));
  });
}

Requests::~Requests() {
  endpoint_.handle(channel_, 0, {});
  endpoint_.handle(channel_ + 1, 0, {});
  const std::lock_guard lock(open_->mutex);
  open_->questions.clear();
}

void Requests::answer_with(Answerer answerer) {
  {
    const std::lock_guard lock(open_->mutex);
    open_->answerer = std::move(answerer);
  }
  endpoint_.handle(channel_, kNumber + most_,
                   [this](const std::string& peer, std::string m) { take_question(peer, m); });
}

void Requests::take_question(const std::string& peer, const std::string& message) {
  if (message.size() < kNumber) return;
  Answerer answerer;
  {
    const std::lock_guard lock(open_->mutex);
    answerer = open_->answerer;
  }
  const auto is_open = std::make_shared<std::once_flag>();
  const auto answer = [is_open, peer, number = take<uint64_t>(message.data()),
                       &endpoint = endpoint_, channel = channel_ + 1](const std::string& text) {
    std::call_once(*is_open,
                   [&] { send_owned(endpoint, peer, channel, with_number(number, text)); });
  };
  answerer(peer, message.substr(kNumber), answer);
}

void Requests::take_answer(const std::string& peer, std::string message) {
  if (message.size() < kNumber) return;
  const uint64_t number = take<uint64_t>(message.data());
  {
    const std::lock_guard lock(open_->mutex);
    const auto found = open_->questions.find(number);
    // A late or repeated answer, or one from another peer than was asked.
    if (found == open_->questions.end() || found->second.peer != peer) return;
  }
  const auto question = open_->take(number);
  endpoint_.cancel(question.timer, Outcome::cancelled);
  message.erase(0, kNumber);
  const size_t bytes = message.size();
  question.answered({.outcome = Outcome::done, .bytes = bytes}, std::move(message));
}

void Requests::ask(const std::string& peer, std::string_view question, Duration within,
                   Answered answered, Priority priority) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(open_->mutex);
    number = ++open_->last;
    open_->questions[number] = {peer, 0, std::move(answered)};
  }
  const auto fail = [open = open_, number, &endpoint = endpoint_](const Result& result) {
    const auto asked = open->take(number);
    if (!asked.answered) return;
    endpoint.cancel(asked.timer, Outcome::cancelled);
    asked.answered(result, {});
  };
  const Ticket timer = endpoint_.after(
      within, [fail] { fail({.outcome = Outcome::timeout, .reason = "no answer in time"}); });
  {
    const std::lock_guard lock(open_->mutex);
    const auto found = open_->questions.find(number);
    if (found == open_->questions.end()) return;  // it has already timed out
    found->second.timer = timer;
  }
  send_owned(endpoint_, peer, channel_, with_number(number, question), priority,
             [fail](const Result& result) {
               if (result.outcome != Outcome::done) fail(result);
             });
}

}  // namespace troika::net
