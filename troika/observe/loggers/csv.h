// `metrics.csv`: a column `step`, then one column per metric in the order they first appeared.
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

// A line of such a file: one cell a column, empty where the metric was not logged.
struct CsvRow {
  int64_t step = 0;
  std::vector<std::optional<double>> cells;
};
// The names of the metrics in a header line; nothing where it does not begin with `step`.
std::optional<std::vector<std::string>> parse_csv_header(const std::string& line);
// Nothing for a line that is not as CsvLogger writes it.
std::optional<CsvRow> parse_csv_row(const std::string& line, size_t columns);

// Values logged in succession for one step share a row; a metric not logged at a step is an empty
// cell. A new metric rewrites the file with one more column, atomically. Anything else takes time
// in proportion to its row: a row that gets more values is overwritten, and so that a kill
// meanwhile loses nothing of it, it is first written to the file `.<name>.row` beside this one,
// from which the logger that goes on completes it.
class CsvLogger : public Logger {
 public:
  // Starts the file anew. With `resumed` its rows of up to there, and damaged lines, stay; a file
  // without its header is renamed to `<path>.damaged`, with a warning.
  explicit CsvLogger(std::filesystem::path path, std::optional<LogPosition> resumed = {});

  // Throws Error for a name that cannot head a column: empty, `step`, or with a comma, quote or
  // control character.
  void log(int64_t step, const MetricValues& values) override;
  void flush() override;

 private:
  std::filesystem::path row_path() const;
  // Completes the row that a kill may have cut while it was overwritten.
  void complete_row() const;
  void overwrite_row(const std::string& text);
  // Returns the lines of the file that stay.
  std::vector<std::string> take_over(const LogPosition& position);
  void add_columns(const MetricValues& values);
  std::string row_text() const;
  void replace_content(const std::string& content);

  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  std::vector<std::string> columns_;  // without `step`
  int64_t row_start_ = 0;             // where the row of `step_` begins in the file
  int64_t end_ = 0;
  bool has_row_ = false;
  int64_t step_ = 0;
  std::map<std::string, double> row_;
};

}  // namespace troika::observe
