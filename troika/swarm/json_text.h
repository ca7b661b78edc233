// JSON of the room's control messages. Internal to the room.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "troika/base/error.h"

namespace troika::swarm {

// Throws Error(swarm, failure) for texts of another form.
template <typename T>
T parsed(std::string_view text) {
  try {
    return nlohmann::json::parse(text).get<T>();
  } catch (const nlohmann::json::exception& problem) {
    throw Error("swarm", ErrorKind::failure,
                {.what = "a message of another program or version", .got = problem.what()});
  }
}

// Bytes that are no UTF-8 are replaced.
inline std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troika::swarm
