#include "troika/swarm/gossip_message.h"

#include <unordered_map>

#include "troika/base/error.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kRecordBytes = size_t{128} << 10;  // in a message, about
constexpr size_t kKeptMessages = 4096;

}  // namespace

GossipMessage read_gossip(const std::string& text) {
  const auto json = parsed<nlohmann::json>(text);
  GossipMessage message;
  try {
    json.at("group").get_to(message.group);
    if (json.contains("records")) {
      for (const auto& record : json.at("records")) {
        message.records.push_back(SignedRecord::parse(record.get_ref<const std::string&>()));
      }
      json.at("sent_to").get_to(message.sent_to);
    } else {
      auto& holdings = message.holdings.emplace();
      json.at("from").get_to(holdings.from);
      json.at("to").get_to(holdings.to);
      json.at("have").get_to(holdings.have);
    }
  } catch (const nlohmann::json::exception& problem) {
    throw Error("swarm", ErrorKind::failure,
                {.what = "a message of another version", .got = problem.what()});
  }
  return message;
}

GossipReader own_reader() {
  return [](const std::string& text) {
    return std::make_shared<const GossipMessage>(read_gossip(text));
  };
}

GossipReader sharing_reader() {
  using Messages = std::unordered_map<std::string, std::shared_ptr<const GossipMessage>>;
  return [kept = std::make_shared<Messages>()](const std::string& text) {
    if (const auto found = kept->find(text); found != kept->end()) return found->second;
    if (kept->size() >= kKeptMessages) kept->clear();
    return kept->emplace(text, std::make_shared<const GossipMessage>(read_gossip(text)))
        .first->second;
  };
}

std::vector<std::shared_ptr<const std::string>> record_messages(
    const std::vector<std::string>& records, const std::vector<std::string>& sent_to,
    const std::string& group) {
  std::vector<std::shared_ptr<const std::string>> messages;
  std::vector<std::string> batch;
  size_t bytes = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    bytes += records[i].size();
    batch.push_back(records[i]);
    if (bytes < kRecordBytes && i + 1 < records.size()) continue;
    messages.push_back(std::make_shared<const std::string>(
        text_of({{"group", group}, {"records", batch}, {"sent_to", sent_to}})));
    batch.clear();
    bytes = 0;
  }
  return messages;
}

std::string holdings_message(const GossipMessage::Holdings& holdings, const std::string& group) {
  return text_of(
      {{"group", group}, {"from", holdings.from}, {"to", holdings.to}, {"have", holdings.have}});
}

}  // namespace troika::swarm
