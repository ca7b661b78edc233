#include "troika/cluster/rendezvous/server_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/rendezvous/inquiries.h"

namespace troika::cluster {

namespace {

// Enough if rank 0's machine is up; otherwise reconnecting is useless.
constexpr Milliseconds kReturnTime{2000};

}  // namespace

ServerConnection::ServerConnection(std::unique_ptr<RendezvousServer> server, Entrance entrance,
                                   Joined joined)
    : server_(std::move(server)), entrance_(std::move(entrance)), line_(std::move(joined.line)) {
  set_relays(joined.relay_rank, joined.relays);
  line_->give_to([this](const Frame& frame) { return take_in(frame); });
  reader_ = std::thread([this] { read_until_stopped(); });
}

ServerConnection::~ServerConnection() {
  bool is_missed = false;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::leaving && server_) server_->say_bye();
    is_missed = std::exchange(state_, State::stopping) == State::open;
  }
  line_->wake();
  reader_.join();
  line_->give_to({});
  // The connection of a relay stays open for its ranks, so it would not show the loss of this rank.
  if (is_missed) line_->post(encode({Message::fail, next_call_++, "", "its connection closed"}));
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
  line_->post(frame);
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
    // Rank 0 is already gone, or has not answered by the deadline.
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
    // The connection has ended, which has the same effect.
  }
}

void ServerConnection::listen(Message kind, Listener listener) {
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(state_ != State::leaving, "rendezvous used after leave()");
    board_.subscribe(kind, std::move(listener));
  }
  line_->wake();
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
  if (any_open) line_->post(frame);
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
  const auto for_ever = Deadline::after(Clock::duration::max());
  while (true) {
    tell_listeners();
    const auto frame = line_->next(for_ever);
    if (!frame) {
      if (const auto reason = line_->ended()) go_on_without(*reason);
    } else if (frame->message == Message::ask) {
      answer(*frame);
    }
    const std::lock_guard lock(mutex_);
    if (state_ == State::stopping) return;
  }
}

bool ServerConnection::take_in(const Frame& frame) {
  const std::lock_guard lock(mutex_);
  switch (frame.message) {
    case Message::bye:
      cut(frame.number != 0 ? frame.value : "it has ended", frame.number != 0);
      return true;
    case Message::lost:
    case Message::left:
      note({frame.message, static_cast<int>(frame.number), frame.value});
      return true;
    // Calls and questions that have timed out are no longer in the maps.
    case Message::answer:
      if (const auto question = questions_.find(frame.key); question != questions_.end()) {
        question->second.take(frame.value);
        if (question->second.is_answered()) answered_.notify_all();
      }
      return true;
    case Message::value:
    case Message::failed:
      if (const auto call = calls_.find(frame.number); call != calls_.end()) {
        call->second.answer = frame;
        answered_.notify_all();
      }
      return true;
    default:
      return false;
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
  line_->post(encode({Message::answer, question.number, "", text}));
}

void ServerConnection::note(const NewsBoard::News& news) {
  if (!board_.note(news)) return;
  for (auto& [name, question] : questions_) question.gone(news.rank);
  if (!questions_.empty()) answered_.notify_all();
  if (board_.has_listeners()) line_->wake();
}

void ServerConnection::go_on_without(const std::string& reason) {
  int relay = 0;
  {
    const std::lock_guard lock(mutex_);
    if (cut_) return;
    const int own = entrance_.environment.rank;
    relay = relays_[static_cast<size_t>(own)];
    const bool is_needed = state_ == State::open || (state_ == State::leaving && !calls_.empty());
    if (relay == 0 || relay == own || !is_needed) return cut(reason, true);
  }
  if (return_to_server()) return;
  const std::lock_guard lock(mutex_);
  note({Message::lost, relay, reason});
  cut("its connection closed", true);
}

// Returns whether rank 0's server has accepted this rank again.
bool ServerConnection::return_to_server() {
  std::vector<std::string> again;
  try {
    const auto relays = come_back(entrance_, *line_, Deadline::after(kReturnTime));
    const std::lock_guard lock(mutex_);
    set_relays(0, relays);
    for (auto& [number, call] : calls_) {
      if (call.answer) continue;
      if (call.message != Message::add) {
        again.push_back(call.frame);
        continue;
      }
      // It is unknown whether the server has processed the add.
      const Refusal lost{ErrorKind::peer, {.what = "the rank that relays to rank 0 has ended"}};
      call.answer = Frame{Message::failed, number, "", to_json(lost)};
    }
    for (const auto& [name, question] : questions_) again.push_back(question.frame());
    answered_.notify_all();
  } catch (const Error&) {
    return false;
  }
  for (const auto& frame : again) line_->post(frame);
  return true;
}

void ServerConnection::cut(const std::string& reason, bool was_lost) {
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
