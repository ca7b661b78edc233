#include "troika/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

namespace troika {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

// Splits text into words at separators and at boundaries between letters and digits.
std::vector<std::string> words_of(std::string_view text) {
  enum class Kind { none, letter, digit };
  std::vector<std::string> words;
  Kind last = Kind::none;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const Kind kind = std::isdigit(byte)   ? Kind::digit
                      : std::isalpha(byte) ? Kind::letter
                                           : Kind::none;
    if (kind != Kind::none) {
      if (kind != last) words.emplace_back();
      words.back() += c;
    }
    last = kind;
  }
  return words;
}

// An abbreviation is close to its word, e.g. val to validation.
double distance_of_words(const std::string& typed, const std::string& word) {
  if (typed.size() >= 2 && word.starts_with(typed)) return typed == word ? 0 : 0.5;
  return static_cast<double>(edit_distance(typed, word));
}

// The minimum of two measures, both ignoring case and separators: the edits between the whole
// texts; and the sum of the edits from each typed word to the nearest word of the candidate, plus
// one for each additional word of the candidate.
double distance(std::string_view typed, const std::string& candidate) {
  const auto mine = words_of(lower_case(typed));
  const auto theirs = words_of(lower_case(candidate));
  const auto joined = [](const std::vector<std::string>& words) {
    return std::accumulate(words.begin(), words.end(), std::string());
  };
  const auto whole = static_cast<double>(edit_distance(joined(mine), joined(theirs)));
  if (mine.empty() || theirs.size() < mine.size()) return whole;
  auto by_words = static_cast<double>(theirs.size() - mine.size());
  for (const auto& word : mine) {
    double least = distance_of_words(word, theirs.front());
    for (const auto& other : theirs) least = std::min(least, distance_of_words(word, other));
    by_words += least;
  }
  return std::min(whole, by_words);
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) {
                                       return distance(word, a) < distance(word, b);
                                     });
  return best == candidates.end() ? std::string() : *best;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string shortened(std::string_view text) {
  constexpr size_t kShown = 80;
  if (text.size() <= kShown) return std::string(text);
  return std::string(text.substr(0, kShown)) + "...";
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<int64_t> parse_int(std::string_view text) {
  return parse_number<int64_t>(text);
}
std::optional<double> parse_double(std::string_view text) {
  return parse_number<double>(text);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = parse_double(text.substr(0, end));
  std::string unit(trim(text.substr(end)));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array<std::array<std::string_view, 3>, 5> kNames{{{"", "b", "b"},
                                                                   {"k", "kb", "kib"},
                                                                   {"m", "mb", "mib"},
                                                                   {"g", "gb", "gib"},
                                                                   {"t", "tb", "tib"}}};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (std::ranges::find(kNames[i], unit) == kNames[i].end()) continue;
    const double bytes = std::ldexp(number.value_or(-1), static_cast<int>(10 * i));
    if (bytes < 0 || bytes >= std::ldexp(1.0, 63)) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

std::string human_number(double value, int digits) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}f}", value, digits);
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace troika
