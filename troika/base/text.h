// Small helpers on text: for messages a person reads and values a person typed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika {

// The candidate that somebody who typed `word` most likely meant: the fewest edits away, whatever
// the case and the separators, where an abbreviation counts as its word (val_loss is close to
// validation/loss). Empty when there is no candidate.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string lower_case(std::string_view text);  // of ASCII letters

// The whole text as a number, or nothing.
std::optional<int64_t> parse_int(std::string_view text);
std::optional<double> parse_double(std::string_view text);
// "6GiB", "1.5 gb", "6G" or "4096": bytes, at least 0, rounded down. Every unit is 1024 of the one
// before.
std::optional<int64_t> parse_bytes(std::string_view text);

// With so many digits after the point; a NaN without its sign, which says nothing.
std::string human_number(double value, int digits);
// 1536 -> "1.5 KiB"; 59.2 -> "59 s", 75 -> "1:15", 3700 -> "1:01:40".
std::string human_bytes(double bytes);
std::string human_seconds(double seconds);

}  // namespace troika
