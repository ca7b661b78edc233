#include "troika/observe/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "troika/base/file.h"
#include "troika/base/log.h"

namespace troika::observe {

void Profile::add(const std::string& action, Clock::duration time) {
  auto& entry = entries_[action];
  ++entry.calls;
  entry.total += time;
}

std::string Profile::table() const {
  const double whole = since_start_.seconds();
  std::vector<std::pair<std::string, Entry>> rows(entries_.begin(), entries_.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& one, const auto& other) {
    return one.second.total > other.second.total;
  });
  size_t width = 6;
  int64_t calls = 0;
  for (const auto& [action, entry] : rows) {
    width = std::max(width, action.size());
    calls += entry.calls;
  }
  const auto row = [&](const std::string& action, const auto& mean, const auto& count,
                       const auto& total, const auto& share) {
    return fmt::format("|  {:<{}}  |  {:<17}  |  {:<9}  |  {:<14}  |  {:<12}  |\n", action, width,
                       mean, count, total, share);
  };
  std::string text =
      row("Action", "Mean duration (s)", "Num calls", "Total time (s)", "Percentage %");
  const std::string rule(text.size() - 1, '-');
  text += rule + "\n" + row("Total", "-", calls, fmt::format("{:.5}", whole), "100 %");
  text += rule + "\n";
  for (const auto& [action, entry] : rows) {
    const double total = std::chrono::duration<double>(entry.total).count();
    text += row(action, fmt::format("{:.5}", total / static_cast<double>(entry.calls)), entry.calls,
                fmt::format("{:.5}", total), fmt::format("{:.5}", 100 * total / whole));
  }
  return rule + "\n" + text + rule + "\n";
}

void Profile::report(const std::filesystem::path& folder, const std::string& title) const {
  const auto text = table();
  const auto file = folder / (title + "-profile.txt");
  write_file_atomically(file, text);
  log::info("profile of {}, also in {}:\n{}", title, file.string(), text);
}

}  // namespace troika::observe
