// The direction of a message between two ranks.
#pragma once

#include <cstdint>
#include <string_view>

namespace troika::comm {

enum class Direction : uint8_t { send, receive };
// "send", "receive"
std::string_view name(Direction direction);

}  // namespace troika::comm
