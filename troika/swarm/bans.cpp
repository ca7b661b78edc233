#include "troika/swarm/bans.h"

#include <algorithm>
#include <string_view>

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

// Whether a text has the form of the name of an identity.
bool is_name(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// A text of another peer, for this one's log and terminal.
std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char byte) { return byte < ' ' || byte > '~'; }, '?');
  return text;
}

}  // namespace

bool is_accusation(const Record& record) {
  try {
    return is_name(record.sub_key) && record.sub_key != record.peer &&
           parsed<AccusationBody>(record.body).why.size() <= 200;
  } catch (const Error&) {
    return false;
  }
}

void Bans::take_change(const Record& record) {
  if (record.kind != kAccusation) return;
  if (record.body.empty()) {
    if (const auto found = accusers_.find(record.sub_key); found != accusers_.end()) {
      found->second.erase(record.peer);
    }
    return;
  }
  const auto now = directory_.now();
  for (auto& [peer, accusers] : accusers_) {
    std::erase_if(accusers, [now](const auto& one) { return one.second <= now; });
  }
  std::erase_if(accusers_, [](const auto& one) { return one.second.empty(); });
  const bool is_new = accusers_[record.sub_key].insert_or_assign(record.peer, record.expiry).second;
  if (!is_new) return;
  const auto why = parsed<AccusationBody>(record.body).why;
  log::info("[swarm] {} accuses {}: {}", record.peer.substr(0, 8), record.sub_key.substr(0, 8),
            printable(why));
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

size_t Bans::accusers_of(const std::string& peer) const {
  const auto found = accusers_.find(peer);
  if (found == accusers_.end()) return 0;
  return static_cast<size_t>(std::ranges::count_if(
      found->second, [now = directory_.now()](const auto& one) { return one.second > now; }));
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
