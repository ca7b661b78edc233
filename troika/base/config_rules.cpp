// The rules for option values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "troika/base/config.h"
#include "troika/base/text.h"

namespace troika::config {

namespace {

double number(const Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return std::get<double>(value);
}

bool is_among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Rule at_least(int64_t low) {
  return {fmt::format("an integer >= {}", low),
          [=](const Value& value) { return std::get<int64_t>(value) >= low; }};
}

Rule at_least(double low) {
  return {fmt::format("a number >= {}", low), [=](const Value& v) { return number(v) >= low; }};
}

Rule above(double low) {
  return {fmt::format("a number > {}", low), [=](const Value& v) { return number(v) > low; }};
}

Rule between(int64_t low, int64_t high) {
  return {fmt::format("an integer from {} to {}", low, high), [=](const Value& value) {
            const auto integer = std::get<int64_t>(value);
            return integer >= low && integer <= high;
          }};
}

Rule between(double low, double high) {
  return {fmt::format("a number from {} to {}", low, high),
          [=](const Value& v) { return number(v) >= low && number(v) <= high; }};
}

Rule count_from(int64_t low) {
  return between(low, int64_t{1'000'000'000});
}

Rule count_or_flag() {
  auto rule = count_from(0);
  rule.text += ", true for 1 or false for 0";
  rule.takes_flags = true;
  return rule;
}

Rule number_or_share() {
  return {
      .text = "a number such as 10, or a fraction such as 0.1", .holds = {}, .takes_numbers = true};
}

Rule from_to_below(double low, double high) {
  return {fmt::format("a number >= {} and < {}", low, high),
          [=](const Value& v) { return number(v) >= low && number(v) < high; }};
}

Rule above_to(double low, double high) {
  return {fmt::format("a number > {} and <= {}", low, high),
          [=](const Value& v) { return number(v) > low && number(v) <= high; }};
}

Rule one_of(std::vector<std::string> names, std::map<std::string, std::string> known_as) {
  return {fmt::format("one of {}", fmt::join(names, ", ")),
          [names](const Value& value) { return is_among(names, std::get<std::string>(value)); },
          names, std::move(known_as)};
}

Rule one_of_or_none(std::vector<std::string> names) {
  auto rule = one_of(std::move(names));
  rule.holds = [is_one = std::move(rule.holds)](const Value& value) {
    return std::get<std::string>(value).empty() || is_one(value);
  };
  return rule;
}

std::string meant_name(const std::string& text, const std::vector<std::string>& names,
                       const std::map<std::string, std::string>& known_as) {
  const auto known = known_as.find(lower_case(text));
  return known == known_as.end() ? nearest(text, names) : known->second;
}

Rule some_of(std::vector<std::string> names) {
  return {fmt::format("a list of {}, each at most once", fmt::join(names, ", ")),
          [names](const Value& value) {
            const auto& given = std::get<std::vector<std::string>>(value);
            return std::set(given.begin(), given.end()).size() == given.size() &&
                   std::all_of(given.begin(), given.end(),
                               [&](const std::string& name) { return is_among(names, name); });
          },
          names};
}

}  // namespace troika::config
