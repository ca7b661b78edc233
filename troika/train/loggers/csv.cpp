#include "troika/train/loggers/csv.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::train {

namespace {

constexpr std::string_view kStep = "step";

void check_name(const std::filesystem::path& path, const std::string& name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == ',' || c == '"' || static_cast<unsigned char>(c) < ' ';
  });
  if (name.empty() || name == kStep || !plain) {
    throw Error("train", ErrorKind::usage,
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

// The shortest text that reads back as the same number; a NaN without its meaningless sign.
std::string cell_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

// The complete lines of a text; a last line without its end was cut by a kill and is left out.
std::vector<std::string> complete_lines(std::string_view text) {
  auto lines = split(text, '\n');
  lines.pop_back();
  return lines;
}

}  // namespace

CsvLogger::CsvLogger(std::filesystem::path path) : path_(std::move(path)) {
  replace_content(header_line(columns_));
}

void CsvLogger::replace_content(const std::string& content) {
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
  if (row_start_ + static_cast<int64_t>(text.size()) < end_) {
    replace_content(read_file(path_).substr(0, static_cast<size_t>(row_start_)) + text);
    return;
  }
  file_->write_at(row_start_, text);
  end_ = row_start_ + static_cast<int64_t>(text.size());
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

  const auto lines = complete_lines(read_file(path_).substr(0, static_cast<size_t>(end_)));
  const std::string empty_cells(columns.size() - columns_.size(), ',');
  std::string text = header_line(columns);
  int64_t last_row_start = static_cast<int64_t>(text.size());
  for (size_t i = 1; i < lines.size(); ++i) {
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

}  // namespace troika::train
