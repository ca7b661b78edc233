#include "troika/net/gate.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

constexpr Milliseconds kRestTime{100};

}  // namespace

Gate::Gate(Poller& poller, const Secret& secret, const std::vector<std::string>& endpoints,
           std::vector<Descriptor> listeners, GateLimits limits, std::function<void(Arrival)> admit)
    : poller_(poller), listeners_(std::move(listeners)), limits_(limits), admit_(std::move(admit)) {
  for (const auto& name : endpoints) handshakes_.emplace_back(secret, listener_name(name));
  set_listening(true);
}

Gate::~Gate() {
  close();
}

void Gate::close() {
  set_listening(false);
  listeners_.clear();
  while (!newcomers_.empty()) drop(newcomers_.begin());
}

void Gate::set_listening(bool listens) {
  if (std::exchange(listens_, listens) == listens) return;
  for (const Descriptor& listener : listeners_) {
    const int fd = listener.get();
    if (listens) {
      poller_.add(fd, [this, fd](uint32_t) { accept_from(fd); });
    } else {
      poller_.remove(fd);
    }
  }
}

size_t Gate::count_strangers() const {
  return static_cast<size_t>(
      std::ranges::count_if(newcomers_, [](const Newcomer& n) { return !n.session; }));
}

std::optional<Deadline> Gate::deadline() const {
  auto first = rests_;
  for (const Newcomer& newcomer : newcomers_) {
    if (!first || newcomer.until < *first) first = newcomer.until;
  }
  return first;
}

void Gate::expire() {
  for (auto place = newcomers_.begin(); place != newcomers_.end();) {
    const auto current = place++;
    if (current->until.passed()) drop(current);
  }
  if (rests_ && rests_->passed()) rests_.reset();
  set_listening(!listeners_.empty() && !rests_ && has_room());
}

void Gate::accept_while(std::function<bool()> has_room) {
  has_room_ = std::move(has_room);
}

bool Gate::has_room() const {
  return newcomers_.size() - count_strangers() < limits_.newcomers && (!has_room_ || has_room_());
}

void Gate::accept_from(int listener) {
  while (has_room()) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return;
      const bool is_short =
          error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
      if (!is_short) continue;  // the error concerns a single connection; see accept(2)
      if (count_strangers() > 0) {
        keep_strangers(0);
        continue;
      }
      if (unwelcome_.accept_problem.empty()) {
        log::warn("[net] cannot accept connections at the moment: {}", system_reason(error));
      }
      unwelcome_.accept_problem = system_reason(error);
      rests_ = Deadline::after(kRestTime);
      return set_listening(false);
    }
    tune(socket.get());
    const int fd = socket.get();
    const auto place = newcomers_.insert(
        newcomers_.end(), Newcomer{std::move(socket), Deadline::after(limits_.proof_time)});
    poller_.add(fd, [this, place](uint32_t) { read(place); });
    // A Troika client's first message has usually arrived already. Reading it now keeps the
    // connection from counting as unauthenticated.
    read(place);
    keep_strangers(limits_.strangers);
  }
  set_listening(false);  // until expire() finds room
}

void Gate::keep_strangers(size_t most) {
  size_t there = count_strangers();
  for (auto place = newcomers_.begin(); there > most;) {
    const auto current = place++;
    if (current->session) continue;
    drop(current);
    --there;
  }
}

void Gate::drop(Place place) {
  poller_.remove(place->socket.get());
  newcomers_.erase(place);
}

void Gate::read(Place place) {
  Newcomer& newcomer = *place;
  std::string bytes, reason;
  bool goes_on = receive(newcomer.socket.get(), bytes, reason);
  if (goes_on && !newcomer.session && !bytes.empty()) {
    newcomer.bytes += bytes;
    bytes.clear();
    goes_on = take_first_message(newcomer);
  }
  std::optional<Hello> hello;
  if (goes_on && !bytes.empty()) hello = take_hello(newcomer, bytes, goes_on);
  if (hello) {
    poller_.remove(newcomer.socket.get());
    Arrival arrival{std::move(newcomer.socket), frame_keys(*newcomer.keys),
                    std::move(*newcomer.session), std::move(*hello)};
    newcomers_.erase(place);
    return admit_(std::move(arrival));
  }
  if (!goes_on) drop(place);
}

bool Gate::take_first_message(Newcomer& newcomer) {
  if (!may_begin(newcomer.bytes, kClientMagic)) return false;
  if (newcomer.bytes.size() < kHandshakeSize) return true;
  // Refuses a message followed by more bytes: a client sends its hello only after our answer.
  std::optional<ServerHandshake::Answer> answer;
  for (auto& handshake : handshakes_) {
    if ((answer = handshake.answer(newcomer.bytes))) break;
  }
  if (!answer) {
    ++unwelcome_.unproven;
    return false;
  }
  std::string_view unsent = answer->message;
  std::string reason;
  // The send buffer of a new socket has room for it.
  if (!send_some(newcomer.socket.get(), unsent, reason) || !unsent.empty()) return false;
  newcomer.keys = answer->keys;
  newcomer.session.emplace(answer->keys);
  newcomer.until = Deadline::after(limits_.hello_time);
  return true;
}

std::optional<Hello> Gate::take_hello(Newcomer& newcomer, const std::string& bytes, bool& goes_on) {
  std::string text;
  try {
    newcomer.session->opener.open(bytes, text);
  } catch (const Error&) {
    ++unwelcome_.unproven;
    goes_on = false;
    return std::nullopt;
  }
  if (text.empty()) return std::nullopt;
  auto hello = decode_hello(text);
  goes_on = hello.has_value();
  return hello;
}

}  // namespace troika::net
