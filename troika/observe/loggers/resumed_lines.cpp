#include "troika/observe/loggers/resumed_lines.h"

#include "troika/base/log.h"
#include "troika/base/text.h"

namespace troika::observe {

std::vector<std::string> resumed_lines(
    const std::string& text, const std::filesystem::path& file, int64_t first,
    const LogPosition& position,
    const std::function<std::optional<int64_t>(const std::string&)>& step_of) {
  std::vector<std::string> kept;
  const auto lines = split(text, '\n');
  int64_t rows = 0;  // at position.step
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool has_end = i + 1 < lines.size();
    const auto step = step_of(lines[i]);
    if (step) {
      const bool stays =
          *step < position.step || (*step == position.step && rows++ < position.rows);
      if (stays) kept.push_back(lines[i]);
    } else if (has_end) {
      log::warn("line {} of {} is damaged; it stays as it is", first + static_cast<int64_t>(i),
                file.string());
      kept.push_back(lines[i]);
    }
  }
  return kept;
}

}  // namespace troika::observe
