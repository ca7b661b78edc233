#include "troika/observe/loggers/csv.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/observe/loggers/resumed_lines.h"

namespace troika::observe {

namespace {

constexpr std::string_view kStep = "step";

void check_name(const std::filesystem::path& path, const std::string& name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == ',' || c == '"' || static_cast<unsigned char>(c) < ' ';
  });
  if (name.empty() || name == kStep || !plain) {
    throw Error("observe", ErrorKind::usage,
                {.what = fmt::format("a metric cannot be a column of {}", path.string()),
                 .got = fmt::format("name `{}`", name),
                 .expected = "a name other than `step` without comma, quote or control character"});
  }
}

std::string header_line(const std::vector<std::string>& columns) {
  std::string line(kStep);
  for (const std::string& column : columns) line += "," + column;
  return line + "\n";
}

// The shortest text that parses to the same number; NaN without its meaningless sign.
std::string cell_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

}  // namespace

std::optional<std::vector<std::string>> parse_csv_header(const std::string& line) {
  auto names = split(line, ',');
  if (names.front() != kStep) return {};
  names.erase(names.begin());
  return names;
}

std::optional<CsvRow> parse_csv_row(const std::string& line, size_t columns) {
  const auto cells = split(line, ',');
  const auto step = parse_int(cells.front());
  if (!step || cells.size() != columns + 1) return {};
  CsvRow row{.step = *step, .cells = {}};
  for (size_t i = 1; i < cells.size(); ++i) {
    const auto number = parse_double(cells[i]);
    if (!number && !cells[i].empty()) return {};
    row.cells.push_back(number);
  }
  return row;
}

CsvLogger::CsvLogger(std::filesystem::path path, std::optional<LogPosition> resumed)
    : path_(std::move(path)) {
  std::vector<std::string> lines;
  if (resumed && std::filesystem::exists(path_)) {
    complete_row();
    lines = take_over(*resumed);
  }
  std::string content = header_line(columns_);
  for (const auto& line : lines) {
    row_start_ = static_cast<int64_t>(content.size());
    content += line + "\n";
  }
  replace_content(content);
  // Metrics logged at the last row's step are added to that row.
  const auto last = lines.empty() ? std::nullopt : parse_csv_row(lines.back(), columns_.size());
  if (!last) return;
  has_row_ = true;
  step_ = last->step;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (last->cells[i]) row_[columns_[i]] = *last->cells[i];
  }
}

std::vector<std::string> CsvLogger::take_over(const LogPosition& position) {
  const auto text = read_file(path_);
  const auto end = text.find('\n');
  const auto columns =
      end == std::string::npos ? std::nullopt : parse_csv_header(text.substr(0, end));
  if (!columns) {
    auto aside = path_;
    aside += ".damaged";
    log::warn("line 1 of {} is damaged; the file stays as {}", path_.string(), aside.string());
    std::filesystem::rename(path_, aside);
    return {};
  }
  columns_ = *columns;
  return resumed_lines(text.substr(end + 1), path_, 2, position,
                       [this](const std::string& line) -> std::optional<int64_t> {
                         const auto row = parse_csv_row(line, columns_.size());
                         return row ? std::optional(row->step) : std::nullopt;
                       });
}

std::filesystem::path CsvLogger::row_path() const {
  return path_.parent_path() / fmt::format(".{}.row", path_.filename().string());
}

void CsvLogger::complete_row() const {
  if (!std::filesystem::exists(row_path())) return;
  const auto content = read_file(row_path());
  const auto end = content.find('\n');
  const auto start = parse_int(content.substr(0, end));
  const File file(path_, O_WRONLY);
  if (end == std::string::npos || !start || *start < 0 || *start > file.size()) return;
  file.write_at(*start, content.substr(end + 1));
  file.sync();
}

// A killed process may have written only a part, and the row may be older than a checkpoint. A row
// never becomes shorter, so repeating the write restores it from any partial state.
void CsvLogger::overwrite_row(const std::string& text) {
  write_file_atomically(row_path(), fmt::format("{}\n{}", row_start_, text));
  file_->write_at(row_start_, text);
  end_ = row_start_ + static_cast<int64_t>(text.size());
}

void CsvLogger::replace_content(const std::string& content) {
  // The row file holds a position in the old file.
  if (std::filesystem::remove(row_path())) sync_path(path_.parent_path());
  write_file_atomically(path_, content);
  file_ = std::make_unique<File>(path_, O_WRONLY);
  end_ = file_->size();
}

void CsvLogger::log(int64_t step, const MetricValues& values) {
  for (const auto& [name, value] : values) check_name(path_, name);
  if (!has_row_ || step != step_) {
    has_row_ = true;
    step_ = step;
    row_.clear();
    row_start_ = end_;
  }
  add_columns(values);
  for (const auto& [name, value] : values) row_[name] = value;
  const std::string text = row_text();
  if (row_start_ == end_) {
    file_->write_at(end_, text);
    end_ += static_cast<int64_t>(text.size());
  } else if (row_start_ + static_cast<int64_t>(text.size()) >= end_) {
    overwrite_row(text);
  } else {
    replace_content(read_file(path_).substr(0, static_cast<size_t>(row_start_)) + text);
  }
}

void CsvLogger::flush() {
  file_->sync();
}

void CsvLogger::add_columns(const MetricValues& values) {
  auto columns = columns_;
  for (const auto& [name, value] : values) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  }
  if (columns.size() == columns_.size()) return;

  const auto lines = split(read_file(path_).substr(0, static_cast<size_t>(end_)), '\n');
  const std::string empty_cells(columns.size() - columns_.size(), ',');
  std::string text = header_line(columns);
  int64_t last_row_start = static_cast<int64_t>(text.size());
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    last_row_start = static_cast<int64_t>(text.size());
    text += lines[i] + empty_cells + "\n";
  }
  const bool row_is_written = row_start_ < end_;
  replace_content(text);
  columns_ = std::move(columns);
  row_start_ = row_is_written ? last_row_start : end_;
}

std::string CsvLogger::row_text() const {
  std::string text = fmt::format("{}", step_);
  for (const std::string& column : columns_) {
    const auto cell = row_.find(column);
    text += ',';
    if (cell != row_.end()) text += cell_text(cell->second);
  }
  return text + "\n";
}

}  // namespace troika::observe
