#include "troika/base/processor_load.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika {

namespace {

constexpr int kCalmReadings = 3;
constexpr double kLeastSeconds = 2;

// Reads to the end, because files of /proc report size 0.
std::string text_in_proc(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> words;
  for (auto& word : split(line, ' ')) {
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

double ticks_of(const std::vector<std::string>& words, size_t index) {
  const auto ticks = index < words.size() ? parse_int(words[index]) : std::nullopt;
  if (!ticks) {
    throw Error("base", ErrorKind::failure,
                {.what = "the times of processors in /proc cannot be read",
                 .got = index < words.size() ? words[index] : "a short line",
                 .expected = "the files of proc(5)"});
  }
  return static_cast<double>(*ticks);
}

}  // namespace

ProcessorTimes processor_times(const std::filesystem::path& root) {
  const auto machine = text_in_proc(root / "proc/stat");
  const auto process = text_in_proc(root / "proc/self/stat");
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  ProcessorTimes times{.processors = 0};
  for (const auto& line : split(machine, '\n')) {
    if (!line.starts_with("cpu")) continue;
    const auto words = fields_of(line);
    if (words.front() != "cpu") {
      ++times.processors;
      continue;
    }
    // user nice system idle iowait irq softirq steal; guests are part of user and nice.
    for (size_t i = 1; i <= 8; ++i) {
      const double seconds = ticks_of(words, i) / ticks_per_second;
      times.all += seconds;
      if (i != 4 && i != 5) times.busy += seconds;
    }
  }
  // The name of the program, in parentheses, may have any characters.
  const auto words = fields_of(std::string_view(process).substr(process.rfind(')') + 1));
  times.own = (ticks_of(words, 11) + ticks_of(words, 12)) / ticks_per_second;
  times.processors = std::max(1, times.processors);
  return times;
}

LoadOfOthers::LoadOfOthers(double most, std::function<ProcessorTimes()> read)
    : most_(most), read_(std::move(read)), calm_(kCalmReadings) {}

bool LoadOfOthers::is_above() {
  const auto now = read_();
  const double all = now.all - last_.all;
  if (!is_first_ && all < kLeastSeconds * now.processors) return calm_ < kCalmReadings;
  const double others = (now.busy - last_.busy) - (now.own - last_.own);
  last_ = now;
  if (std::exchange(is_first_, false)) return false;
  load_ = std::clamp(others / all, 0.0, 1.0);
  calm_ = load_ > most_ ? 0 : std::min(calm_ + 1, kCalmReadings);
  return calm_ < kCalmReadings;
}

}  // namespace troika
