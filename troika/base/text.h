// Text helpers for messages and for values that a user typed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// Returns the candidate that `word` most likely means: the one with the fewest edits, ignoring case
// and separators. An abbreviation counts as close to its word (val_loss is close to
// validation/loss). Empty if there are no candidates.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string lower_case(std::string_view text);  // ASCII letters only
// Returns the text, or its first 80 bytes and "..." if it is longer; for messages.
std::string shortened(std::string_view text);

// Parse the whole text as a number; nullopt otherwise.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);
// Parses a size such as "6GiB", "1.5 gb", "6G" or "4096" into bytes, rounded down. Each unit is
// 1024 times the previous one. nullopt for other text.
std::optional<int64_t> parse_bytes(std::string_view text);

// Formats `value` with `digits` decimals. A NaN is printed without its sign.
std::string human_number(double value, int digits);
// 1536 -> "1.5 KiB"; 59.2 -> "59 s", 75 -> "1:15", 3700 -> "1:01:40".
std::string human_bytes(double bytes);
std::string human_seconds(double seconds);

}  // namespace troika
