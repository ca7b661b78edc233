#include "troika/cluster/peer.h"

#include <sys/socket.h>

#include <utility>

#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// For what follows: its hello, and at the end that it closes its side.
constexpr Milliseconds kHelloTime{20'000};
// The limit of the first frame; the room's own are far smaller.
constexpr size_t kMaxHelloFrame = size_t{1} << 16;

}  // namespace

Peer::Peer(net::Descriptor connection, Milliseconds proof_time)
    : socket_(std::move(connection)), patience_(Deadline::after(proof_time)) {
  net::tune(socket_.get());
}

Peer::Peer(net::Descriptor connection, net::Session session, Decoder in)
    : rank(0),
      socket_(std::move(connection)),
      session_(std::move(session)),
      in_(std::move(in)),
      patience_(Deadline::after(kHelloTime)) {}

void Peer::refuse(const Refusal& why) {
  send({Message::refused, 0, "", to_json(why)});
  close();
}

void Peer::close() {
  closing = true;
  patience_ = Deadline::after(kHelloTime);
}

void Peer::end(const std::string& why) {
  ended = true;
  reason = why;
}

std::optional<Deadline> Peer::patience() const {
  return admitted() && !closing ? std::nullopt : std::optional(patience_);
}

void Peer::flush() {
  if (ended) return;
  ended = !out_.flush(socket_.get(), reason);
  if (closing && !ended && out_.empty() && !std::exchange(shut_, true)) {
    // Half closed: a full close could destroy the refusal on its way.
    ::shutdown(socket_.get(), SHUT_WR);
  }
}

void Peer::read(net::ServerHandshake& handshake) {
  std::string bytes, why;
  if (!net::receive(socket_.get(), bytes, why)) end(why);
  if (closing || bytes.empty()) return;
  if (!session_) take_first_message(handshake, bytes);
  if (!session_ || bytes.empty()) return;
  std::string text;
  try {
    session_->opener.open(bytes, text);
  } catch (const Error& broken) {
    failed_proof |= !session_->opener.has_opened();
    end(broken.what());
  }
  in_.feed(text);
}

// Leaves in `bytes` what follows it.
void Peer::take_first_message(net::ServerHandshake& handshake, std::string& bytes) {
  first_ += bytes;
  bytes.clear();
  if (!net::may_begin(first_, net::kClientMagic)) return end("it is no client of Troika's");
  if (first_.size() < net::kHandshakeSize) return;
  bytes = first_.substr(net::kHandshakeSize);
  first_.resize(net::kHandshakeSize);
  auto answer = handshake.answer(first_);
  if (!answer) {
    failed_proof = true;
    return end("it does not hold the run's secret");
  }
  first_.clear();
  session_.emplace(answer->keys);
  out_.add(std::move(answer->message));
  patience_ = Deadline::after(kHelloTime);
}

std::optional<Frame> Peer::next() {
  return admitted() ? in_.next() : in_.next(kMaxHelloFrame);
}

}  // namespace troika::cluster
