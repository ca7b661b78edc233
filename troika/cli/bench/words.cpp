#include "troika/cli/bench/words.h"

#include <fmt/format.h>

#include <string_view>

#include "troika/base/error.h"

namespace troika::cli::bench {

namespace {

// MPI counts are ints.
constexpr int64_t kMaxBytes = int64_t{4} << 30;
constexpr double kMaxSeconds = 3600;

}  // namespace

void refuse(const std::string& what, const std::string& got, const std::string& expected,
            const std::string& hint) {
  throw Error("bench", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

void refuse_name(const std::string& what, const std::string& got,
                 const std::vector<std::string>& known) {
  throw Error(
      "bench", ErrorKind::usage,
      {.what = "unknown " + what, .got = got, .hint = "did you mean " + nearest(got, known) + "?"});
}

int64_t bytes_from(const std::string& word) {
  constexpr std::string_view kUnits = "KMG";
  std::string_view digits = word;
  int64_t unit = 1;
  if (const size_t at = digits.empty() ? kUnits.npos : kUnits.find(digits.back());
      at != kUnits.npos) {
    unit = int64_t{1} << (10 * (at + 1));
    digits.remove_suffix(1);
  }
  const auto number = parse_int(digits);
  if (!number || *number < 1 || *number > kMaxBytes / unit) {
    refuse("size", word, "a number of bytes from 1 to 4G", "4K, 1M and 2G are multiples of 1024");
  }
  return *number * unit;
}

double seconds_from(double min_time) {
  if (!(min_time > 0 && min_time <= kMaxSeconds)) {
    refuse("--min-time", fmt::format("{}", min_time),
           fmt::format("a number of seconds > 0 and <= {}", kMaxSeconds));
  }
  return min_time;
}

}  // namespace troika::cli::bench
