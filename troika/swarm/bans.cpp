#include "troika/swarm/bans.h"

#include <algorithm>

#include "troika/base/log.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr WallTime kAccusationLife = std::chrono::minutes(10);
constexpr int kMostStrikes = 3;

struct AccusationBody {
  std::string why;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AccusationBody, why)

}  // namespace

bool is_accusation(const Record& record) {
  try {
    return !record.sub_key.empty() && record.sub_key != record.peer &&
           parsed<AccusationBody>(record.body).why.size() <= 200;
  } catch (const Error&) {
    return false;
  }
}

void Bans::take_change(const Record& record) {
  if (record.kind != kAccusation) return;
  if (record.body.empty()) {
    accusers_[record.sub_key].erase(record.peer);
    return;
  }
  const bool is_new = accusers_[record.sub_key].insert_or_assign(record.peer, record.expiry).second;
  if (!is_new) return;
  const auto why = parsed<AccusationBody>(record.body).why;
  log::info("[swarm] {} accuses {}: {}", record.peer.substr(0, 8), record.sub_key.substr(0, 8),
            why);
}

void Bans::judge(const AveragingResult& result) {
  for (const auto& [peer, why] : result.excluded) {
    if (why == kNotFinite) accuse(peer, why);
  }
  std::erase_if(strikes_, [&](const auto& one) { return !result.far.contains(one.first); });
  for (const auto& peer : result.far) {
    if (++strikes_[peer] >= kMostStrikes) accuse(peer, "its numbers are far from those of others");
  }
}

void Bans::accuse(const std::string& peer, const std::string& why) {
  if (peer == own_name_) return;
  directory_.publish(kAccusation, peer, 0, kAccusationLife, text_of(AccusationBody{why}));
}

std::set<std::string> Bans::banned_by(const std::set<std::string>& voters) const {
  std::set<std::string> banned;
  const auto now = directory_.now();
  for (const auto& [peer, accusers] : accusers_) {
    const auto against = std::ranges::count_if(
        accusers, [&](const auto& one) { return one.second > now && voters.contains(one.first); });
    const auto others = static_cast<int64_t>(voters.size()) - (voters.contains(peer) ? 1 : 0);
    if (2 * against > others) banned.insert(peer);
  }
  return banned;
}

}  // namespace troika::swarm
