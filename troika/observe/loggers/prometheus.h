// `metrics.prom`: the latest value of each metric in Prometheus' text format, for the textfile
// collector of node_exporter (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "troika/observe/loggers/logger.h"

namespace troika::observe {

// `train/loss` becomes the gauge `troika_train_loss` with the label run="<name of the run>";
// `troika_step` is the step of the last log(). Each log() replaces the file by a rename, so a
// scrape always reads a complete file.
class PrometheusLogger : public Logger {
 public:
  PrometheusLogger(std::filesystem::path path, std::string run);

  // Throws Error for a name whose gauge name equals that of another metric or of `step`: all
  // characters except letters, digits and underscores are replaced.
  void log(int64_t step, const MetricValues& values) override;
  // Does nothing, because log() has already waited.
  void flush() override {}

 private:
  struct Gauge {
    std::string name;  // as logged
    double value;
  };
  void set(const std::string& name, double value);

  std::filesystem::path path_;
  std::string run_;
  std::map<std::string, Gauge> gauges_;  // by gauge name
};

}  // namespace troika::observe
