// The rules for the blocks of a profile, in each of its text forms.
#pragma once

#include <algorithm>
#include <string_view>

namespace troika::layout {

// The longest time of a pass, in seconds.
inline constexpr double kMostSeconds = 1e9;

// Whether a layout string of stages (parse_cut()) can have the name.
inline bool is_block_name(std::string_view name) {
  constexpr unsigned char kDelete = 127;
  return !name.empty() && std::ranges::none_of(name, [](unsigned char c) {
    return c <= ' ' || c == kDelete ||
           std::string_view(",|*()").find(static_cast<char>(c)) != std::string_view::npos;
  });
}
// The names that is_block_name() takes, for errors.
inline constexpr const char* kBlockNames = "a name without blanks and without , | * ( )";

}  // namespace troika::layout
