// The results of a benchmark, in the format that bench/compare reads (docs/benchmarks.md).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace troika {

// The median of samples and the bounds that hold the true one with 95 % confidence: order
// statistics, whatever the distribution (Hahn and Meeker, Statistical Intervals, 5.2). Of fewer
// than six samples the bounds are the least and the greatest.
struct Spread {
  double median = 0, low = 0, high = 0;
  int64_t samples = 0;
};
// Throws CheckError without samples.
Spread spread_of(std::vector<double> samples);

enum class Better { lower, higher };

class BenchmarkRecord {
 public:
  // `versions` are those of the libraries that it has measured, by name. The date, the machine and
  // the command line of this process are added.
  BenchmarkRecord(std::string name, std::map<std::string, std::string> versions);

  // `what` names the quantity among those of this benchmark, and stays the same from one version of
  // the program to the next. `details` is an object for readers; bench/compare does not look at it.
  void add(std::string what, std::string unit, Better better, const Spread& spread,
           const nlohmann::json& details);
  void add(std::string what, std::string unit, Better better, std::vector<double> samples);
  // JSON that ends with a newline.
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

// "AMD EPYC (family 25, model 17)"; "unknown" where the system does not tell.
std::string cpu_model();

}  // namespace troika
