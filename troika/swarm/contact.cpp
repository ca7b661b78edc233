#include "troika/swarm/contact.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr size_t kMostSign = 4096;

}  // namespace

std::string text_of(const Contact& contact) {
  auto addresses = nlohmann::json::array();
  for (const auto& address : contact.addresses) addresses.push_back({address.host, address.port});
  return text_of(nlohmann::json{addresses, contact.schema, contact.model, contact.target_batch});
}

Contact contact_from(std::string_view text) {
  using Addresses = std::vector<std::pair<std::string, int>>;
  const auto [addresses, schema, model, target_batch] =
      parsed<std::tuple<Addresses, std::string, std::string, int64_t>>(text);
  Contact contact{.schema = schema, .model = model, .target_batch = target_batch};
  for (const auto& [host, port] : addresses) contact.addresses.push_back({host, port});
  return contact;
}

bool is_contact(const Record& record) {
  try {
    contact_from(record.body);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Door::Door(net::Endpoint& endpoint, std::string run) : requests_(endpoint, kDoors, kMostSign) {
  requests_.answer_with(
      [sign = text_of(nlohmann::json{endpoint.name(), std::move(run)})](
          const std::string&, const std::string&, const net::Answer& answer) { answer(sign); });
}

DoorSign sign_from(std::string_view text) {
  const auto [name, run] = parsed<std::pair<std::string, std::string>>(text);
  return {name, run};
}

}  // namespace troika::swarm
