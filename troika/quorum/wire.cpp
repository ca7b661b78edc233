#include "troika/quorum/wire.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "troika/base/error.h"

namespace troika::net {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Address, host, port)
}  // namespace troika::net

namespace troika::quorum {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Rules, replicas, min_replicas, global_batch, inner_steps,
                                   join_timeout, heartbeat_timeout, timeout)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Share, first, count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(QuorumMember, name, rank, addresses, share, donor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Totals, begun, counted, lost)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Quorum, id, step, members, totals)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Report, kind, rank, process_group, addresses, rules, step, id,
                                   ok, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(News, kind, quorum, text)

namespace {

template <typename T>
T parsed(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<T>();
  } catch (const nlohmann::json::exception& problem) {
    throw Error("quorum", ErrorKind::failure,
                {.what = "a message of another program or version", .got = problem.what()});
  }
}

std::string text_of(const nlohmann::json& json) {
  // Names and reasons may hold bytes that are no UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

const QuorumMember* Quorum::find(const std::string& name) const {
  const auto found = std::ranges::find(members, name, &QuorumMember::name);
  return found == members.end() ? nullptr : &*found;
}

int64_t Quorum::samples() const {
  int64_t sum = 0;
  for (const auto& member : members) sum += member.share.count;
  return sum;
}

std::string to_json(const Report& report) {
  return text_of(nlohmann::json(report));
}

std::string to_json(const News& news) {
  return text_of(nlohmann::json(news));
}

Report report_from_json(const std::string& text) {
  return parsed<Report>(text);
}

News news_from_json(const std::string& text) {
  return parsed<News>(text);
}

}  // namespace troika::quorum
