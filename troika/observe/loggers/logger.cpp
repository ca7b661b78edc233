#include "troika/observe/loggers/logger.h"

#include "troika/base/error.h"
#include "troika/observe/loggers/csv.h"
#include "troika/observe/loggers/jsonl.h"
#include "troika/observe/loggers/prometheus.h"
#include "troika/observe/loggers/tensorboard.h"

namespace troika::observe {

namespace {

std::unique_ptr<Logger> open_logger(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& run, std::optional<LogPosition> resumed) {
  if (name == "csv") return std::make_unique<CsvLogger>(folder / "metrics.csv", resumed);
  if (name == "tensorboard") return std::make_unique<TensorBoardLogger>(folder, resumed);
  if (name == "jsonl") return std::make_unique<JsonlLogger>(folder / "metrics.jsonl", resumed);
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
                                                  std::optional<LogPosition> resumed) {
  std::vector<std::unique_ptr<Logger>> loggers;
  for (const std::string& name : names) {
    loggers.push_back(open_logger(name, folder, run, resumed));
  }
  return loggers;
}

}  // namespace troika::observe
