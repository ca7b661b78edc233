#include "troika/cluster/server_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/inquiries.h"

namespace troika::cluster {

namespace {

// Rank 0's machine is up, or the way back to it does not matter any more.
constexpr Milliseconds kReturnTime{2000};

}  // namespace

ServerConnection::ServerConnection(std::unique_ptr<RendezvousServer> server, Entrance entrance,
                                   Joined joined)
    : server_(std::move(server)),
      relay_(std::move(joined.relay)),
      entrance_(std::move(entrance)),
      link_(std::move(joined.connection)) {
  set_relays(joined.relay_rank, joined.relays);
  reader_ = std::thread([this] { read_until_stopped(); });
}

ServerConnection::~ServerConnection() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::leaving && server_) server_->say_bye();
    state_ = State::stopping;
  }
  link_.wake();
  reader_.join();
  link_.shut();
}

void ServerConnection::set_relays(int own, const std::string& packed) {
  const int world_size = entrance_.environment.world_size;
  relays_.assign(static_cast<size_t>(world_size), 0);
  unpack_answers(packed, world_size, [&](int rank, const std::string& relay) {
    const auto number = parse_int(relay).value_or(0);
    if (number > 0 && number < world_size) {
      relays_[static_cast<size_t>(rank)] = static_cast<int>(number);
    }
  });
  relays_[static_cast<size_t>(entrance_.environment.rank)] = own;
}

Error ServerConnection::gone_error(const std::string& purpose) const {
  return Error("cluster", ErrorKind::peer,
               {.what = fmt::format("rank 0, which holds the keys, {} while {}",
                                    cut_->was_lost ? "was lost" : "left", purpose),
                .got = cut_->reason});
}

void ServerConnection::require_usable() const {
  TROIKA_CHECK(state_ != State::leaving, "rendezvous used after leave()");
  TROIKA_CHECK(std::this_thread::get_id() != reader_.get_id(),
               "a listener of the rendezvous waits for the thread it runs on");
}

std::string ServerConnection::call(Message message, const std::string& key,
                                   const std::string& value, Deadline deadline,
                                   const std::string& purpose) {
  {
    const std::lock_guard lock(mutex_);
    require_usable();
  }
  return request(message, key, value, deadline, purpose);
}

std::string ServerConnection::request(Message message, const std::string& key,
                                      const std::string& value, Deadline deadline,
                                      const std::string& purpose) {
  const uint64_t number = next_call_++;
  const std::string frame = encode({message, number, key, value});
  std::unique_lock lock(mutex_);
  if (cut_) throw gone_error(purpose);
  calls_.emplace(number, Call{message, frame});
  lock.unlock();
  link_.post(frame);
  lock.lock();
  const auto done = [&] { return calls_.at(number).answer.has_value() || cut_; };
  const bool in_time = answered_.wait_until(lock, deadline.at(), done);
  const auto answer = std::move(calls_.extract(number).mapped().answer);
  if (!in_time) {
    throw Error("cluster", ErrorKind::timeout,
                {.what = fmt::format("the time is over while {}", purpose)});
  }
  if (!answer) throw gone_error(purpose);
  if (answer->message == Message::value) return answer->value;
  throw to_error(answer->value, message == Message::get ? purpose : "");
}

void ServerConnection::leave(const std::string& farewell, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::leaving) return;
    require_usable();
    state_ = State::leaving;
    if (cut_) return;
  }
  try {
    request(Message::leave, "", farewell, deadline, "leaving");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) throw;
    // Nobody to take leave of, or somebody who would not go first.
  }
}

void ServerConnection::fail(const std::string& reason, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    require_usable();
    state_ = State::failing;
  }
  try {
    request(Message::fail, "", reason, deadline, "failing");
  } catch (const Error&) {
    // The end of the connection is the answer.
  }
}

void ServerConnection::listen(Message kind, Listener listener) {
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(state_ != State::leaving, "rendezvous used after leave()");
    board_.subscribe(kind, std::move(listener));
  }
  link_.wake();
}

void ServerConnection::on_asked(Answerer answerer) {
  const std::lock_guard lock(mutex_);
  TROIKA_CHECK(state_ != State::leaving, "rendezvous used after leave()");
  TROIKA_CHECK(!answerer_, "one function answers for a rank");
  answerer_ = std::move(answerer);
}

Answers ServerConnection::ask_all(const std::string& question, Deadline deadline) {
  const std::string name = std::to_string(next_call_++);
  const std::string frame =
      encode({Message::ask, static_cast<uint64_t>(deadline.left().count()), name, question});
  const int own_rank = entrance_.environment.rank, world_size = entrance_.environment.world_size;
  std::unique_lock lock(mutex_);
  require_usable();
  const Answerer answerer = answerer_;
  Question& asked = questions_.try_emplace(name, frame, own_rank, world_size).first->second;
  for (int rank = 0; rank < world_size; ++rank) {
    if (board_.has(rank)) asked.gone(rank);
  }
  const bool any_open = !asked.is_answered();
  lock.unlock();
  if (any_open) link_.post(frame);
  std::string own = answerer ? answerer(question) : "";
  lock.lock();
  answered_.wait_until(lock, deadline.at(), [&] { return asked.is_answered() || cut_; });
  auto ended = questions_.extract(name);
  return ended.mapped().finish(std::move(own), relays_[static_cast<size_t>(own_rank)], relays_);
}

std::vector<int> ServerConnection::relays() const {
  const std::lock_guard lock(mutex_);
  return relays_;
}

void ServerConnection::read_until_stopped() {
  bool has_ended = false;
  while (true) {
    try {
      while (const auto frame = link_.next()) take_in(*frame);
    } catch (const Error& broken) {
      link_.end(broken.what());
    }
    if (!link_.ended()) {
      has_ended = false;
    } else if (!std::exchange(has_ended, true)) {
      go_on_without(*link_.ended());
      continue;
    }
    tell_listeners();
    link_.wait();
    const std::lock_guard lock(mutex_);
    if (state_ == State::stopping) return;
  }
}

void ServerConnection::take_in(const Frame& frame) {
  if (frame.message == Message::bye) {
    const bool was_lost = frame.number != 0;
    return cut(was_lost ? frame.value : "it has ended", was_lost);
  }
  if (frame.message == Message::ask) return answer(frame);
  const std::lock_guard lock(mutex_);
  if (frame.message == Message::lost || frame.message == Message::left) {
    return note({frame.message, static_cast<int>(frame.number), frame.value});
  }
  // Calls and questions that ran out of time are no longer here.
  if (frame.message == Message::answer) {
    const auto question = questions_.find(frame.key);
    if (question == questions_.end()) return;
    question->second.take(frame.value);
    if (question->second.is_answered()) answered_.notify_all();
  } else if (const auto call = calls_.find(frame.number); call != calls_.end()) {
    call->second.answer = frame;
    answered_.notify_all();
  }
}

void ServerConnection::answer(const Frame& question) noexcept {
  Answerer answerer;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::leaving || state_ == State::stopping) return;
    answerer = answerer_;
  }
  const std::string text = answerer ? answerer(question.value) : "";
  link_.post(encode({Message::answer, question.number, "", text}));
}

void ServerConnection::note(const NewsBoard::News& news) {
  if (!board_.note(news)) return;
  for (auto& [name, question] : questions_) question.gone(news.rank);
  answered_.notify_all();
}

void ServerConnection::go_on_without(const std::string& reason) {
  int relay = 0;
  bool has_errands = false;
  {
    const std::lock_guard lock(mutex_);
    if (cut_) return;
    relay = relays_[static_cast<size_t>(entrance_.environment.rank)];
    has_errands = state_ == State::open || (state_ == State::leaving && !calls_.empty());
  }
  if (relay == 0 || !has_errands) return cut(reason, true);
  if (return_to_server()) return;
  {
    const std::lock_guard lock(mutex_);
    note({Message::lost, relay, reason});
  }
  cut("its connection closed", true);
}

// Whether rank 0's server has taken this rank back.
bool ServerConnection::return_to_server() {
  std::vector<std::string> again;
  try {
    Joined joined = come_back(entrance_, Deadline::after(kReturnTime));
    link_.replace(std::move(joined.connection));
    const std::lock_guard lock(mutex_);
    set_relays(0, joined.relays);
    for (auto& [number, call] : calls_) {
      if (call.answer) continue;
      if (call.message != Message::add) {
        again.push_back(call.frame);
        continue;
      }
      // Nobody can tell whether it was added.
      const Refusal lost{ErrorKind::peer, {.what = "the rank that relays to rank 0 has ended"}};
      call.answer = Frame{Message::failed, number, "", to_json(lost)};
    }
    for (const auto& [name, question] : questions_) again.push_back(question.frame());
    answered_.notify_all();
  } catch (const Error&) {
    return false;
  }
  for (const auto& frame : again) link_.post(frame);
  return true;
}

void ServerConnection::cut(const std::string& reason, bool was_lost) {
  const std::lock_guard lock(mutex_);
  if (cut_) return;
  cut_ = Cut{reason, was_lost};
  note({was_lost ? Message::lost : Message::left, 0, was_lost ? reason : ""});
  answered_.notify_all();
}

void ServerConnection::tell_listeners() {
  while (true) {
    std::optional<std::pair<Listener, NewsBoard::News>> next;
    {
      const std::lock_guard lock(mutex_);
      if (state_ != State::open && state_ != State::failing) return;
      next = board_.next();
    }
    if (!next) return;
    next->first(next->second.rank, next->second.text);
  }
}

}  // namespace troika::cluster
