#include "troika/train/logger.h"

#include "troika/base/error.h"
#include "troika/train/csv_logger.h"
#include "troika/train/jsonl_logger.h"
#include "troika/train/prometheus_logger.h"
#include "troika/train/tensorboard_logger.h"

namespace troika::train {

namespace {

std::unique_ptr<Logger> open_logger(const std::string& name, const std::filesystem::path& folder,
                                    const std::string& run) {
  if (name == "csv") return std::make_unique<CsvLogger>(folder / "metrics.csv");
  if (name == "tensorboard") return std::make_unique<TensorBoardLogger>(folder);
  if (name == "jsonl") return std::make_unique<JsonlLogger>(folder / "metrics.jsonl");
  TROIKA_CHECK(name == "prometheus", "no logger is called " + name);
  return std::make_unique<PrometheusLogger>(folder / "metrics.prom", run);
}

}  // namespace

std::vector<std::string> logger_names() {
  return {"csv", "tensorboard", "jsonl", "prometheus"};
}

std::vector<std::unique_ptr<Logger>> open_loggers(const std::vector<std::string>& names,
                                                  const std::filesystem::path& folder,
                                                  const std::string& run) {
  std::vector<std::unique_ptr<Logger>> loggers;
  for (const std::string& name : names) loggers.push_back(open_logger(name, folder, run));
  return loggers;
}

}  // namespace troika::train
