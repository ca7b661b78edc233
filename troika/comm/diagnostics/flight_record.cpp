#include "troika/comm/diagnostics/flight_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace troika::comm {

std::string FlightRecord::Message::describe() const {
  return fmt::format("{} #{} {} {}, {} {}{} ({}){}", direction, number,
                     direction == "send" ? "to" : "from",
                     peer < 0 ? "any rank" : fmt::format("rank {}", peer), on_edge ? "edge" : "tag",
                     tag, label.empty() ? "" : " '" + label + "'", site,
                     type.empty() ? "" : fmt::format(" of {} x {}", type, count));
}

const FlightRecord::Call* FlightRecord::last() const {
  const Call* latest = nullptr;
  for (const auto& [sequence, call] : calls) {
    if (call.started) latest = &call;
  }
  return latest;
}

int64_t FlightRecord::next() const {
  for (const auto& [sequence, call] : calls) {
    if (call.state != "finished") return sequence;
  }
  return calls.empty() ? 0 : calls.rbegin()->first + 1;
}

std::optional<double> FlightRecord::failed_at() const {
  std::optional<double> first;
  const auto take = [&](const std::string& state, std::optional<double> ended) {
    if (state == "failed" && ended && (!first || *ended < *first)) first = ended;
  };
  for (const auto& [sequence, call] : calls) take(call.state, call.ended);
  for (const auto& message : waits) take(message.state, message.ended);
  return first || cause.empty() ? first : now;
}

FlightRecord parse_flight_record(const std::string& file, const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  FlightRecord record;
  record.file = file;
  record.group = json.at("group");
  record.backend = json.at("backend");
  record.cause = json.at("cause");
  record.host = json.at("host");
  record.rank = json.at("rank");
  record.size = json.at("size");
  record.now = json.at("now");
  record.world_ranks = json.value("world_ranks", std::vector<int>());
  record.places = json.value("places", std::vector<std::string>());
  for (const auto& row : json.at("statuses")) {
    auto& answer = record.statuses.emplace_back();
    if (row.is_null()) continue;
    answer = {row.at("sequence"), row.at("finished"), row.at("left"), row.at("call")};
  }
  const auto time = [](const nlohmann::json& value) {
    return value.is_null() ? std::nullopt : std::optional(value.get<double>());
  };
  for (const auto& row : json.at("calls")) {
    const int64_t sequence = row.at("sequence");
    record.calls[sequence] = {sequence,        row.at("count"),         row.at("operation"),
                              row.at("type"),  row.at("label"),         row.at("site"),
                              row.at("state"), time(row.at("started")), time(row.at("ended"))};
  }
  for (const auto& row : json.value("messages", nlohmann::json::array())) {
    const std::string state = row.at("state");
    if (row.at("awaited").is_null() || state == "finished") continue;
    record.waits.push_back({row.at("number"), row.at("count"), row.at("peer"), row.at("tag"),
                            row.at("edge"), row.at("direction"), row.at("type"), row.at("label"),
                            row.at("site"), state, row.at("awaited"), time(row.at("ended"))});
  }
  for (const auto& [sequence, call] : record.calls) {
    const bool ran = call.state == "running" || call.state == "finished";
    if ((ran && !call.started) || (call.state == "finished" && !call.ended)) {
      throw std::out_of_range(
          fmt::format("call #{} is {} without its times", sequence, call.state));
    }
  }
  if (record.rank < 0 || record.rank >= record.size) {
    throw std::out_of_range(fmt::format("rank {} of {}", record.rank, record.size));
  }
  for (const size_t listed : {record.world_ranks.size(), record.places.size()}) {
    if (listed == 0 || listed == static_cast<size_t>(record.size)) continue;
    throw std::out_of_range(fmt::format("{} ranks of {}", listed, record.size));
  }
  return record;
}

}  // namespace troika::comm
