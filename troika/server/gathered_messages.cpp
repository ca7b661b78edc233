#include "troika/server/gathered_messages.h"

#include <memory>
#include <utility>

#include "troika/server/wire.h"

namespace troika::server {

namespace {

// The number of a worker, or the generation of its map, with which other messages begin, is less.
constexpr uint64_t kMark = ~uint64_t{0};
constexpr size_t kMostGathered = 32 * 1024;  // bytes of gathered messages

}  // namespace

net::Ticket GatheringEndpoint::send(const std::string& peer, net::Channel channel,
                                    const net::Pieces& message, net::Priority priority,
                                    net::Completion completion) {
  if (channel != channel_ || !gathers(message.bytes())) {
    const auto before = channel == channel_ ? gathered_.find(peer) : gathered_.end();
    if (before != gathered_.end()) send_gathered(peer, before->second);
    return endpoint_.send(peer, channel, message, priority, std::move(completion));
  }
  auto& gathered = gathered_[peer];
  if (gathered.empty()) {
    gathered.reserve(kMostGathered + 2 * kMostSmall);
    Writer(gathered).number(kMark);
  }
  Writer writer(gathered);
  writer.number<uint64_t>(message.bytes());
  message.slice(0, message.bytes(), [&](std::string_view part) { gathered += part; });
  writer.pad();
  if (gathered.size() > kMostGathered) send_gathered(peer, gathered);
  if (completion) completion({.outcome = net::Outcome::done, .bytes = message.bytes()});
  return 0;
}

void GatheringEndpoint::send_gathered(const std::string& peer, std::string& gathered) {
  if (gathered.empty()) return;
  net::send_owned(endpoint_, peer, channel_,
                  std::make_shared<const std::string>(std::exchange(gathered, {})));
}

GatheringEndpoint::~GatheringEndpoint() {
  net::act_on(endpoint_, [this] {
    if (turn_ != 0) endpoint_.cancel(turn_, net::Outcome::cancelled);
  });
}

void GatheringEndpoint::begin_turn() {
  begin();
  if (turn_ != 0) return;
  turn_ = endpoint_.after(net::Duration(0), [this] {
    turn_ = 0;
    end();
  });
}

void GatheringEndpoint::end() {
  is_open_ = false;
  auto all = std::exchange(gathered_, {});
  for (auto& [peer, gathered] : all) send_gathered(peer, gathered);
}

void for_each_message(std::string message, const std::function<void(std::string)>& take) {
  uint64_t mark = 0;
  if (message.size() >= sizeof(mark)) std::memcpy(&mark, message.data(), sizeof(mark));
  if (mark != kMark) return take(std::move(message));
  Reader reader(message);
  reader.number<uint64_t>();
  while (!reader.is_over()) {
    take(reader.text());
    reader.skip_pad();
  }
}

}  // namespace troika::server
