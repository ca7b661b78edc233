#include "troika/cluster/rendezvous/wire.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace troika::cluster {

namespace {

constexpr size_t kHead = 1 + 8 + 4;  // message, number, length of the key

template <typename Number>
void put(std::string& out, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

template <typename Number>
Number take(std::string_view bytes) {
  Number value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

}  // namespace

std::string to_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string encode(const Frame& frame) {
  const size_t size = kHead + frame.key.size() + frame.value.size();
  if (size > kMaxFrame + (frame.message == Message::relayed ? kMaxEnvelope : 0)) {
    throw Error("cluster", ErrorKind::usage,
                {.what = frame.message == Message::set
                             ? fmt::format("value of key \"{}\" is too long", frame.key)
                             : "message to other ranks is too long",
                 .got = fmt::format("{} bytes", frame.value.size()),
                 .expected = fmt::format("less than {} bytes", kMaxFrame)});
  }
  std::string out;
  out.reserve(4 + size);
  put(out, static_cast<uint32_t>(size));
  out += static_cast<char>(frame.message);
  put(out, frame.number);
  put(out, static_cast<uint32_t>(frame.key.size()));
  out += frame.key;
  out += frame.value;
  return out;
}

Frame take_frame(std::string_view& bytes) {
  const auto broken = [] {
    return Error("cluster", ErrorKind::failure, {.what = "broken frame on the control connection"});
  };
  const size_t size = bytes.size() < 4 ? 0 : take<uint32_t>(bytes);
  if (size < kHead || size > bytes.size() - 4) throw broken();
  const auto body = bytes.substr(4, size);
  const size_t key_size = take<uint32_t>(body.substr(9));
  const auto message = static_cast<unsigned char>(body[0]);
  if (key_size > size - kHead || message > static_cast<unsigned char>(kLastMessage)) throw broken();
  bytes.remove_prefix(4 + size);
  return {static_cast<Message>(message), take<uint64_t>(body.substr(1)),
          std::string(body.substr(kHead, key_size)), std::string(body.substr(kHead + key_size))};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, protocol, rank, world_size, run_id, host, pid,
                                   patience_ms, left_ms, machine, relay_port, direct)

std::string to_json(const Hello& hello) {
  return to_text(nlohmann::json(hello));
}

std::optional<Hello> hello_from_json(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<Hello>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string to_json(const Refusal& refusal) {
  return to_text({{"kind", static_cast<int>(refusal.kind)},
                  {"what", refusal.text.what},
                  {"got", refusal.text.got},
                  {"expected", refusal.text.expected},
                  {"hint", refusal.text.hint}});
}

Error to_error(const std::string& refusal_json, const std::string& purpose) {
  try {
    const auto json = nlohmann::json::parse(refusal_json);
    const std::string what = json.at("what");
    return Error("cluster", static_cast<ErrorKind>(json.at("kind").get<int>()),
                 {.what = purpose.empty() ? what : fmt::format("{} while {}", what, purpose),
                  .got = json.at("got"),
                  .expected = json.at("expected"),
                  .hint = json.at("hint")});
  } catch (const nlohmann::json::exception& problem) {
    return Error("cluster", ErrorKind::failure,
                 {.what = "rank 0 sent an error that cannot be read", .got = problem.what()});
  }
}

}  // namespace troika::cluster
