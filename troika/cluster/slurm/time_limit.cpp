#include "troika/cluster/slurm/time_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "troika/base/text.h"

namespace troika::cluster::slurm {

namespace {

// Parses digits only: no sign, and limited in length.
std::optional<int64_t> count(std::string_view text) {
  if (text.empty() || text.size() > 6 ||
      !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return parse_int(text);
}

}  // namespace

std::optional<std::chrono::seconds> parse_time(std::string_view text) {
  const size_t dash = text.find('-');
  const bool with_days = dash != std::string_view::npos;
  const auto days = with_days ? count(text.substr(0, dash)) : 0;
  if (!days) return std::nullopt;
  std::vector<int64_t> parts;
  for (const auto& part : split(with_days ? text.substr(dash + 1) : text, ':')) {
    const auto number = count(part);
    if (!number) return std::nullopt;
    parts.push_back(*number);
  }
  if (parts.size() > 3) return std::nullopt;
  // After days, the first part is hours. Without days, a single part is minutes, and two parts are
  // minutes and seconds.
  if (!with_days && parts.size() < 3) parts.insert(parts.begin(), 0);
  parts.resize(3, 0);
  const std::chrono::seconds time(*days * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]);
  if (time.count() == 0) return std::nullopt;
  return time;
}

std::string format_time(std::chrono::seconds time) {
  const int64_t seconds = time.count();
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace troika::cluster::slurm
