#include "troika/cluster/discovery/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cluster {

namespace {

// More hosts than any machine has. Limits the memory for mistakes such as [1-99999999].
constexpr size_t kMaxHosts = 1'000'000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

[[noreturn]] void fail(std::string_view list, const std::string& expected) {
  throw Error("cluster", ErrorKind::usage,
              {.what = "host list",
               .got = fmt::format("\"{}\"", list),
               .expected = expected,
               .hint = "for example n[1-3,07],login"});
}

// Accepts only digits, few enough for an int64.
std::optional<int64_t> parse_digits(std::string_view text) {
  const bool digits = !text.empty() && text.size() <= 18 && std::ranges::all_of(text, is_digit);
  return digits ? parse_int(text) : std::nullopt;
}

std::string padded(int64_t number, size_t width) {
  return fmt::format("{:0{}}", number, width);
}

// Expands the content of one bracket: "1-3,07" -> {"1", "2", "3", "07"}.
std::vector<std::string> expand_ranges(std::string_view list, std::string_view inside) {
  std::vector<std::string> numbers;
  for (const auto& range : split(inside, ',')) {
    const size_t dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const auto from = parse_digits(first);
    const auto to = parse_digits(last);
    if (!from || !to) fail(list, fmt::format("numbers a or a-b instead of \"{}\"", range));
    if (*to < *from) fail(list, fmt::format("a range that counts up instead of \"{}\"", range));
    if (static_cast<size_t>(*to - *from) >= kMaxHosts) {
      fail(list, fmt::format("at most {} hosts", kMaxHosts));
    }
    for (int64_t i = *from; i <= *to; ++i) numbers.push_back(padded(i, first.size()));
  }
  return numbers;
}

// Expands one entry of the list.
std::vector<std::string> expand_entry(std::string_view list, std::string_view entry) {
  if (entry.empty()) fail(list, "a host name on each side of every comma");
  std::vector<std::string> hosts{""};
  while (!entry.empty()) {
    const size_t open = std::min(entry.find('['), entry.size());
    for (auto& host : hosts) host += entry.substr(0, open);
    entry.remove_prefix(open);
    if (entry.empty()) break;
    const size_t close = entry.find(']');  // exists: the caller has checked the balance
    const auto numbers = expand_ranges(list, entry.substr(1, close - 1));
    if (hosts.size() * numbers.size() > kMaxHosts) {
      fail(list, fmt::format("at most {} hosts", kMaxHosts));
    }
    std::vector<std::string> product;
    for (const auto& host : hosts) {
      for (const auto& number : numbers) product.push_back(host + number);
    }
    hosts = std::move(product);
    entry.remove_prefix(close + 1);
  }
  return hosts;
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  bool inside = false;
  size_t start = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[' && inside) fail(list, "no bracket inside a bracket");
    if (c == ']' && !inside) fail(list, "an opening bracket before each \"]\"");
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (i == list.size() && inside) fail(list, "a closing bracket after each \"[\"");
    if (c != ',' || inside) continue;
    for (auto& host : expand_entry(list, list.substr(start, i - start))) {
      hosts.push_back(std::move(host));
    }
    if (hosts.size() > kMaxHosts) fail(list, fmt::format("at most {} hosts", kMaxHosts));
    start = i + 1;
  }
  return hosts;
}

std::vector<int> expand_counts(std::string_view text) {
  const auto refuse = [&] {
    throw Error("cluster", ErrorKind::usage,
                {.what = "tasks per node",
                 .got = fmt::format("\"{}\"", text),
                 .expected = "counts such as 4(x2),3"});
  };
  std::vector<int> counts;
  for (const auto& entry : split(text, ',')) {
    const size_t open = entry.find("(x");
    const auto count = parse_digits(std::string_view(entry).substr(0, open));
    std::optional<int64_t> times = 1;
    if (open != std::string::npos) {
      if (!entry.ends_with(')')) refuse();
      times = parse_digits(std::string_view(entry).substr(open + 2, entry.size() - open - 3));
    }
    if (!count || !times || *count > 1'000'000 || *times < 1 ||
        static_cast<size_t>(*times) > kMaxHosts) {
      refuse();
    }
    counts.insert(counts.end(), static_cast<size_t>(*times), static_cast<int>(*count));
  }
  return counts;
}

}  // namespace troika::cluster
