#include "troika/cluster/rendezvous/relay.h"

#include <set>

#include "troika/cluster/rendezvous/ranges.h"

namespace troika::cluster {

template <typename Act>
void Relay::each_rank(const Act& act) {
  for (auto& [name, peer] : peers()) {
    if (peer.admitted() && !peer.closing) act(peer);
  }
}

void Relay::tell_server(const Frame& frame) {
  post(server_, kToServer, encode(frame));
}

void Relay::handle(Peer& from, const Frame& frame) {
  if (!from.admitted()) {
    const auto hello =
        frame.message == Message::hello ? hello_from_json(frame.value) : std::nullopt;
    if (!hello || hello->rank < 0 || hello->rank >= world_size_) {
      return end(from, "it says no hello");
    }
    from.rank = hello->rank;
  }
  if (last_word_) {
    send(from, *last_word_);
    return close(from);
  }
  // Tells the rank that its relay works, even if the server does not answer.
  if (frame.message == Message::ask) send(from, {Message::answer, 0, frame.key, ""});
  tell_server({Message::relayed, static_cast<uint64_t>(from.rank), "", encode(frame)});
}

bool Relay::pass_on(const Frame& frame) {
  switch (frame.message) {
    case Message::relayed: {
      std::set<int> ranks;
      for_each_rank(frame.key, world_size_, [&](int rank) { ranks.insert(rank); });
      each_rank([&](Peer& peer) {
        if (ranks.contains(peer.rank)) send(peer, frame.value);
      });
      return true;
    }
    case Message::parted:
      each_rank([&](Peer& peer) {
        if (static_cast<uint64_t>(peer.rank) == frame.number) close(peer);
      });
      return true;
    case Message::welcome:
      each_rank([&](Peer& peer) { send(peer, frame); });
      return false;
    case Message::bye:
    case Message::refused:
      end_all(frame);
      return false;
    default:
      return false;
  }
}

void Relay::lose_server(const std::string& reason) {
  end_all({Message::bye, 1, "", reason});
}

void Relay::end_all(const Frame& last_word) {
  if (last_word_) return;
  last_word_ = last_word;
  each_rank([&](Peer& peer) {
    send(peer, last_word);
    close(peer);
  });
}

void Relay::part_from(Peer& gone) {
  if (!gone.admitted() || last_word_) return;
  tell_server({Message::parted, static_cast<uint64_t>(gone.rank), "", gone.reason});
}

}  // namespace troika::cluster
