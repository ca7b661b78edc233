// The results of a benchmark, in the JSON format that bench/compare reads (docs/benchmarks.md).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace troika {

// The median of samples and its 95 % confidence bounds. The bounds are order statistics, valid for
// any distribution (Hahn and Meeker, Statistical Intervals, 5.2). For fewer than six samples they
// are the minimum and the maximum.
struct Spread {
  double median = 0, low = 0, high = 0;
  int64_t samples = 0;
};
// Throws CheckError when `samples` is empty.
Spread spread_of(std::vector<double> samples);

enum class Better { lower, higher };

class BenchmarkRecord {
 public:
  // `versions` maps the names of the measured libraries to their versions. The constructor adds the
  // date, the machine and the command line of this process.
  BenchmarkRecord(std::string name, std::map<std::string, std::string> versions);

  // `what` names the measured quantity. The name must be unique in this benchmark and must not
  // change between versions of the program. `details` is a JSON object for human readers;
  // bench/compare ignores it.
  void add(std::string what, std::string unit, Better better, const Spread& spread,
           const nlohmann::json& details);
  void add(std::string what, std::string unit, Better better, std::vector<double> samples);
  // Returns the record as JSON that ends with a newline.
  std::string to_json() const;

 private:
  struct Row {
    std::string what, unit;
    Better better;
    Spread spread;
    std::string details;  // JSON
  };

  std::string name_;
  std::map<std::string, std::string> versions_;
  std::vector<Row> rows_;
};

// Returns the CPU model, e.g. "AMD EPYC (family 25, model 17)", or "unknown".
std::string cpu_model();

}  // namespace troika
