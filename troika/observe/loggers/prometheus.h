// `metrics.prom`: the latest value of each metric in Prometheus' text format, for the textfile
// collector of node_exporter (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// `train/loss` is the gauge `troika_train_loss` with the label run="<name of the run>";
// `troika_step` is the step of the last log(). Each log() replaces the file by a rename, so a
// scrape finds a whole one.
class PrometheusLogger : public Logger {
 public:
  PrometheusLogger(std::filesystem::path path, std::string run);

  // Throws Error for a name that Prometheus could not tell from one logged before (or from `step`),
  // as only letters, digits and underscores are left of it.
  void log(int64_t step, const MetricValues& values) override;
  // Nothing: log() has waited already.
  void flush() override {}

 private:
  struct Gauge {
    std::string name;  // as logged
    double value;
  };
  void set(const std::string& name, double value);

  std::filesystem::path path_;
  std::string run_;
  std::map<std::string, Gauge> gauges_;  // by name in the file
};

}  // namespace troika::observe
