// `metrics.csv`: a column `step`, then one column per metric in the order of first appearance.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/file.h"
#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// A line of the file: one cell per column, empty if the metric was not logged.
struct CsvRow {
  int64_t step = 0;
  std::vector<std::optional<double>> cells;
};
// Returns the names of the metrics in a header line; empty if it does not begin with `step`.
std::optional<std::vector<std::string>> parse_csv_header(const std::string& line);
// Parses a row of the file. Returns nothing for a line that CsvLogger would not write.
std::optional<CsvRow> parse_csv_row(const std::string& line, size_t columns);

// Values logged in succession for the same step share a row. The cell of a metric that was not
// logged at a step is empty. A new metric makes the logger rewrite the file atomically with another
// column. All other operations take time proportional to the row's length. A row that gets more
// values is overwritten in place. It is first written to the file `.<name>.row` beside this one,
// from which a resumed logger restores the row if the process was killed meanwhile.
class CsvLogger : public Logger {
 public:
  // Starts a new file. With `resumed`, keeps the rows up to that position, and damaged lines; a
  // file without a header is renamed to `<path>.damaged`, with a warning.
  explicit CsvLogger(std::filesystem::path path, std::optional<LogPosition> resumed = {});

  // Throws Error for an invalid column name: empty, `step`, or with a comma, quote or control
  // character.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

 private:
  std::filesystem::path row_path() const;
  // Restores the row that was being overwritten when the process was killed.
  void complete_row() const;
  void overwrite_row(const std::string& text);
  // Returns the lines of the file that are kept.
  std::vector<std::string> take_over(const LogPosition& position);
  void add_columns(const MetricValues& values);
  std::string row_text() const;
  void replace_content(const std::string& content);

  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  std::vector<std::string> columns_;  // without `step`
  int64_t row_start_ = 0;             // position of the row of `step_` in the file
  int64_t end_ = 0;
  bool has_row_ = false;
  int64_t step_ = 0;
  std::map<std::string, double> row_;
};

}  // namespace troika::observe
