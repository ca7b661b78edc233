#include "troika/base/machine_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace troika::memory {

namespace {

namespace fs = std::filesystem;

// Returns the content of a file, or "" on failure. Reads up to the end because files of /proc and
// /sys report size 0.
std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return file ? text.str() : "";
}

// Returns the number that follows `word` in the line beginning with it. For an empty `word`,
// returns the number at the start of the text.
std::optional<int64_t> number_after(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    if (!word.empty() && (!(words >> first) || first != word)) continue;
    int64_t number = 0;
    return words >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

// The file names of cgroups v1 or v2.
struct Version {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* cache;
};
constexpr Version kFirst{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file"};
constexpr Version kSecond{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// The bytes left under the cgroup's own limit; nullopt if it has no limit.
std::optional<int64_t> left_in(const fs::path& folder, const Version& version) {
  const auto limit = number_after(content_of(folder / version.limit), "");
  const auto usage = number_after(content_of(folder / version.usage), "");
  // cgroups v1 reports no limit as a page-aligned number near 2^63.
  if (!limit || !usage || *limit > int64_t{1} << 60) return std::nullopt;
  const auto cache = number_after(content_of(folder / "memory.stat"), version.cache).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + cache);
}

// Lowers `least` to the minimum that the cgroup and its ancestors leave.
void consider(const fs::path& root, const std::string& group, const Version& version,
              std::optional<Available>& least) {
  for (fs::path path = group;; path = path.parent_path()) {
    // In a container, the mount may begin at the container's own cgroup.
    const auto left = left_in(root / version.mount / path.relative_path(), version);
    if (left && (!least || *left < least->bytes)) {
      least = Available{*left, fmt::format("the limit of cgroup {}", path.string())};
    }
    if (path == path.parent_path()) return;
  }
}

// Returns a column of /proc/self/statm, converted from pages to bytes.
int64_t pages_of_process(int column) {
  std::istringstream words(content_of("/proc/self/statm"));
  int64_t pages = 0;
  for (int i = 0; i <= column; ++i) words >> pages;
  return words ? pages * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

std::optional<Available> available(const fs::path& root) {
  std::optional<Available> least;
  if (const auto kibibytes = number_after(content_of(root / "proc/meminfo"), "MemAvailable:")) {
    least = Available{*kibibytes * 1024, "this machine's memory"};
  }
  // "4:memory:/job" is cgroups v1, "0::/job" is v2.
  std::istringstream lines(content_of(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const auto group = line.substr(second + 1);
    if (controllers == ",,") consider(root, group, kSecond, least);
    if (controllers.find(",memory,") != std::string::npos) consider(root, group, kFirst, least);
  }
  return least;
}

int64_t resident() {
  return pages_of_process(1);
}

int64_t resident_files() {
  return pages_of_process(2);
}

}  // namespace troika::memory
