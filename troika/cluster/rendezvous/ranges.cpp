#include "troika/cluster/rendezvous/ranges.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cluster {

std::string to_ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += fmt::format("{}{}-{}", i == 0 ? "" : ",", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

void for_each_rank(const std::string& ranges, int world_size,
                   const std::function<void(int)>& take) {
  for (const auto& range : split(ranges, ',')) {
    const auto ends = split(range, '-');
    const auto first = parse_int(ends.front()), last = parse_int(ends.back());
    if (ends.size() != 2 || !first || !last || *first < 0 || *last >= world_size) {
      throw Error("cluster", ErrorKind::failure, {.what = "broken list of ranks"});
    }
    for (int64_t rank = *first; rank <= *last; ++rank) take(static_cast<int>(rank));
  }
}

}  // namespace troika::cluster
