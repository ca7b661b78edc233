#include "troika/train/run_outputs.h"

#include <map>

#include "troika/base/file.h"
#include "troika/train/csv_logger.h"
#include "troika/train/report/run_record.h"
#include "troika/train/tensorboard_logger.h"

namespace troika::train {

namespace {

// Rows of metrics.csv, which other loggers need not be told again.
std::map<int64_t, MetricValues> read_rows(const std::filesystem::path& file, int64_t last_step) {
  std::map<int64_t, MetricValues> rows;
  if (!std::filesystem::exists(file)) return rows;
  for (const auto& column : report::parse_metrics(read_file(file), file.string())) {
    for (const auto& point : column.points) {
      const auto step = static_cast<int64_t>(point.x);
      if (step <= last_step) rows[step].emplace_back(column.name, point.y);
    }
  }
  return rows;
}

}  // namespace

RunOutputs::RunOutputs(bool is_main, const std::filesystem::path& folder, bool show_progress,
                       std::optional<int64_t> resumed_step) {
  if (!is_main) return;
  const auto file = folder / "metrics.csv";
  std::map<int64_t, MetricValues> rows;
  if (resumed_step) rows = read_rows(file, *resumed_step);
  auto csv = std::make_unique<CsvLogger>(file);
  for (const auto& [step, values] : rows) csv->log(step, values);
  loggers_.push_back(std::move(csv));
  loggers_.push_back(std::make_unique<TensorBoardLogger>(folder));
  if (show_progress) progress_.emplace();
}

void RunOutputs::log(int64_t step, const MetricValues& values) {
  for (const auto& logger : loggers_) logger->log(step, values);
}

void RunOutputs::flush() {
  for (const auto& logger : loggers_) logger->flush();
}

void RunOutputs::start_progress(const std::string& label, int64_t total, int64_t done) {
  if (progress_) progress_->start(label, total, done);
}

void RunOutputs::advance(int64_t samples, double loss) {
  if (progress_) progress_->advance(1, samples, loss);
}

void RunOutputs::finish_progress() {
  if (progress_) progress_->finish();
}

}  // namespace troika::train
