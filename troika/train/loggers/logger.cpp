#include "troika/train/loggers/logger.h"

#include <map>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/train/loggers/csv.h"
#include "troika/train/loggers/jsonl.h"
#include "troika/train/loggers/prometheus.h"
#include "troika/train/loggers/tensorboard.h"
#include "troika/train/report/run_record.h"

namespace troika::train {

namespace {

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

std::unique_ptr<Logger> open_csv(const std::filesystem::path& file,
                                 std::optional<int64_t> resumed_step) {
  std::map<int64_t, MetricValues> rows;
  if (resumed_step) rows = read_rows(file, *resumed_step);
  auto csv = std::make_unique<CsvLogger>(file);
  for (const auto& [step, values] : rows) csv->log(step, values);
  return csv;
}

std::unique_ptr<Logger> open_logger(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& run, std::optional<int64_t> resumed_step) {
  if (name == "csv") return open_csv(folder / "metrics.csv", resumed_step);
  if (name == "tensorboard") return std::make_unique<TensorBoardLogger>(folder);
  if (name == "jsonl") {
    return std::make_unique<JsonlLogger>(folder / "metrics.jsonl", resumed_step);
  }
  TROIKA_CHECK(name == "prometheus", "no logger is called " + name);
  return std::make_unique<PrometheusLogger>(folder / "metrics.prom", run);
}

}  // namespace

std::vector<std::string> logger_names() {
  return {"csv", "tensorboard", "jsonl", "prometheus"};
}

std::vector<std::unique_ptr<Logger>> open_loggers(const std::vector<std::string>& names,
                                                  const std::filesystem::path& folder,
                                                  const std::string& run,
                                                  std::optional<int64_t> resumed_step) {
  std::vector<std::unique_ptr<Logger>> loggers;
  for (const std::string& name : names) {
    loggers.push_back(open_logger(name, folder, run, resumed_step));
  }
  return loggers;
}

}  // namespace troika::train
