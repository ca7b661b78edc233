#include "troika/quorum/lighthouse_server.h"

#include <chrono>
#include <memory>

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::quorum {

namespace {

// Between ticks, as TorchFT's.
constexpr net::Duration kTick = std::chrono::milliseconds(100);
// A tick that comes later than this was held up by this process, which may also have missed
// heartbeats.
constexpr net::Duration kLateTick = std::chrono::milliseconds(500);

}  // namespace

LighthouseServer::LighthouseServer(const net::Secret& secret, const net::Address& listen)
    : endpoint_({.name = kLighthouse, .secret = secret, .listen = {listen}, .polls = false}) {
  ticked_ = endpoint_.now();
  endpoint_.listen_to_peers([this](const net::PeerChange& change) {
    if (change.is_up) return;
    lighthouse_.lose(change.peer, endpoint_.now());
    send_news();
  });
  endpoint_.handle(kToLighthouse, kMostControl,
                   [this](const std::string& peer, const std::string& text) { take(peer, text); });
  net::act_on(endpoint_, [this] { tick(); });
}

LighthouseServer::~LighthouseServer() {
  net::act_on(endpoint_, [this] {
    endpoint_.listen_to_peers({});
    endpoint_.handle(kToLighthouse, 0, {});
  });
}

Totals LighthouseServer::totals() {
  Totals result;
  net::act_on(endpoint_, [&] { result = lighthouse_.totals(); });
  return result;
}

std::vector<int64_t> LighthouseServer::take_refused() {
  std::vector<int64_t> result;
  net::act_on(endpoint_, [&] { result = lighthouse_.take_refused(); });
  return result;
}

void LighthouseServer::take(const std::string& peer, const std::string& text) {
  try {
    lighthouse_.take(peer, report_from_json(text), endpoint_.now());
  } catch (const Error& problem) {
    log::warn("[quorum] {} is disconnected: {}", peer, problem.what());
    endpoint_.disconnect(peer);
    return;
  }
  send_news();
}

void LighthouseServer::tick() {
  const auto now = endpoint_.now();
  const auto gap = now - std::exchange(ticked_, now);
  if (gap > kLateTick) lighthouse_.excuse(gap);
  lighthouse_.tick(now);
  send_news();
  endpoint_.after(kTick, [this] { tick(); });
}

void LighthouseServer::send_news() {
  for (const auto& [name, news] : lighthouse_.take_news()) {
    if (news.kind == News::Kind::refused)
      log::warn("[quorum] {} has no place: {}", name, news.text);
    net::send_owned(endpoint_, name, kFromLighthouse,
                    std::make_shared<const std::string>(to_json(news)));
  }
}

}  // namespace troika::quorum
