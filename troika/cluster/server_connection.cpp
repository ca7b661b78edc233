#include "troika/cluster/server_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/inquiries.h"
#include "troika/net/socket.h"

namespace troika::cluster {

ServerConnection::ServerConnection(std::unique_ptr<RendezvousServer> server,
                                   const Environment& environment, int port, Connected connected)
    : server_(std::move(server)),
      rank_(environment.rank),
      world_size_(environment.world_size),
      port_(port),
      socket_(std::move(connected.socket)),
      opener_(std::move(connected.session.opener)),
      in_(std::move(connected.in)),
      sealer_(std::move(connected.session.sealer)),
      reader_([this] { read_until_stopped(); }) {}

ServerConnection::~ServerConnection() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (left_ && server_) server_->say_bye();
  }
  wake_.wake();
  reader_.join();
  ::shutdown(socket_.get(), SHUT_RDWR);
}

Error ServerConnection::gone_error(const std::string& purpose) const {
  return Error("cluster", ErrorKind::peer,
               {.what = fmt::format("rank 0, which holds the keys, {} while {}",
                                    bye_ ? "left" : "was lost", purpose),
                .got = *cut_});
}

void ServerConnection::require_usable() const {
  TROIKA_CHECK(!left_, "rendezvous used after leave()");
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
  const std::string bytes = encode({message, number, key, value});
  std::unique_lock lock(mutex_);
  if (cut_) throw gone_error(purpose);
  calls_[number];
  lock.unlock();
  post(bytes);
  lock.lock();
  const auto done = [&] { return calls_[number].has_value() || cut_; };
  const bool in_time = answered_.wait_until(lock, deadline.at(), done);
  const auto answer = std::move(calls_.extract(number).mapped());
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
    if (left_) return;
    require_usable();
    left_ = true;
    if (cut_) return;
  }
  try {
    request(Message::leave, "", farewell, deadline, "leaving");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) throw;
    // Nobody to take leave of, or somebody who would not go first.
  }
}

void ServerConnection::listen(Message kind, Listener listener) {
  {
    const std::lock_guard lock(mutex_);
    TROIKA_CHECK(!left_, "rendezvous used after leave()");
    subscriptions_.push_back({kind, std::move(listener)});
  }
  wake_.wake();
}

void ServerConnection::on_asked(Answerer answerer) {
  const std::lock_guard lock(mutex_);
  TROIKA_CHECK(!left_, "rendezvous used after leave()");
  TROIKA_CHECK(!answerer_, "one function answers for a rank");
  answerer_ = std::move(answerer);
}

std::vector<std::optional<std::string>> ServerConnection::ask_all(const std::string& question,
                                                                  Deadline deadline) {
  const std::string name = std::to_string(next_call_++);
  const std::string bytes =
      encode({Message::ask, static_cast<uint64_t>(deadline.left().count()), name, question});
  std::unique_lock lock(mutex_);
  require_usable();
  const Answerer answerer = answerer_;
  Inquiry& inquiry = inquiries_[name];
  inquiry.answers.resize(static_cast<size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_ && !gone_.contains(rank)) inquiry.open.insert(rank);
  }
  const bool any_open = !inquiry.open.empty();
  lock.unlock();
  if (any_open) post(bytes);
  std::string own = answerer ? answerer(question) : "";
  lock.lock();
  answered_.wait_until(lock, deadline.at(), [&] { return inquiry.open.empty() || cut_; });
  auto answers = std::move(inquiries_.extract(name).mapped().answers);
  answers[static_cast<size_t>(rank_)] = std::move(own);
  return answers;
}

// Never blocks: what the socket does not take now, the reading thread sends when it can.
void ServerConnection::post(std::string_view bytes) {
  {
    const std::lock_guard lock(out_mutex_);
    out_.add(sealer_.seal(bytes));
  }
  if (!flush()) wake_.wake();
}

// Whether all is out.
bool ServerConnection::flush() {
  const std::lock_guard lock(out_mutex_);
  std::string reason;
  // The reading side tells why a connection ended, after the news that came before.
  if (!out_.flush(socket_.get(), reason)) out_ = {};
  return out_.empty();
}

void ServerConnection::read_until_stopped() {
  std::string bytes, text, reason;
  bool open = true;
  while (true) {
    try {
      opener_.open(bytes, text);
      bytes.clear();
      in_.feed(text);
      text.clear();
      while (const auto frame = in_.next()) take_in(*frame);
      if (!open) cut(reason, true);
    } catch (const Error& broken) {
      bytes.clear();
      cut(broken.what(), true);
      open = false;
    }
    tell_listeners();
    const auto events = static_cast<short>(flush() ? POLLIN : POLLIN | POLLOUT);
    // poll() ignores negative descriptors: after the cut only wake_ counts.
    pollfd entries[] = {{wake_.fd(), POLLIN, 0}, {open ? socket_.get() : -1, events, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[0].revents) {
      wake_.clear();
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (entries[1].revents) {
      open = net::receive(socket_.get(), bytes, reason);
      // The server waits for our end before it is gone.
      if (!open) ::shutdown(socket_.get(), SHUT_RDWR);
    }
  }
}

void ServerConnection::take_in(const Frame& frame) {
  if (frame.message == Message::bye) return cut("it has ended", false);
  if (frame.message == Message::ask) return answer(frame);
  const std::lock_guard lock(mutex_);
  if (frame.message == Message::lost || frame.message == Message::left) {
    return note({frame.message, static_cast<int>(frame.number), frame.value});
  }
  // Calls and inquiries that ran out of time are no longer here.
  if (frame.message == Message::answer) {
    const auto found = inquiries_.find(frame.key);
    if (found == inquiries_.end()) return;
    auto& inquiry = found->second;
    unpack_answers(frame.value, world_size_, [&](int rank, const std::string& text) {
      if (inquiry.open.erase(rank) != 0) inquiry.answers[static_cast<size_t>(rank)] = text;
    });
    answered_.notify_all();
  } else if (const auto call = calls_.find(frame.number); call != calls_.end()) {
    call->second = frame;
    answered_.notify_all();
  }
}

void ServerConnection::answer(const Frame& question) noexcept {
  Answerer answerer;
  {
    const std::lock_guard lock(mutex_);
    if (left_ || stopping_) return;
    answerer = answerer_;
  }
  const std::string text = answerer ? answerer(question.value) : "";
  post(encode({Message::answer, question.number, "", text}));
}

void ServerConnection::note(const News& news) {
  const auto same = [&](const News& old) { return old.kind == news.kind && old.rank == news.rank; };
  if (gone_.contains(news.rank) && std::ranges::any_of(news_, same)) return;
  news_.push_back(news);
  gone_.insert(news.rank);
  for (auto& [name, inquiry] : inquiries_) inquiry.open.erase(news.rank);
  answered_.notify_all();
}

void ServerConnection::cut(const std::string& reason, bool lost) {
  const std::lock_guard lock(mutex_);
  if (cut_) return;
  cut_ = reason;
  bye_ = !lost;
  note({lost ? Message::lost : Message::left, 0, lost ? reason : ""});
  answered_.notify_all();
}

void ServerConnection::tell_listeners() {
  while (true) {
    Listener tell;
    News news;
    {
      const std::lock_guard lock(mutex_);
      if (left_ || stopping_ || subscriptions_.empty()) return;
      // The one furthest behind, so that all hear everything in the order of what happened.
      auto& next = *std::ranges::min_element(subscriptions_, {}, &Subscription::next);
      if (next.next == news_.size()) return;
      news = news_[next.next++];
      if (next.kind != news.kind) continue;
      tell = next.tell;
    }
    tell(news.rank, news.text);
  }
}

}  // namespace troika::cluster
