// How much other programs use the processors of this machine.
#pragma once

#include <filesystem>
#include <functional>

namespace troika {

// Seconds since the machine has started, summed over its processors.
struct ProcessorTimes {
  int processors = 1;
  double all = 0;
  double busy = 0;  // of all processes
  double own = 0;   // of this process
};

// Reads proc/stat and proc/self/stat in the folder `root`. Throws Error(base, failure) if they are
// not those of proc(5).
ProcessorTimes processor_times(const std::filesystem::path& root = "/");

// Whether other programs need the processors, by readings that are at least two seconds apart. Not
// thread-safe.
class LoadOfOthers {
 public:
  // `most`: the share of all processors, in [0, 1], that others may use.
  explicit LoadOfOthers(
      double most, std::function<ProcessorTimes()> read = [] { return processor_times(); });

  // Reads. True after a reading with more load than that, until three readings in a row have not
  // more. False before the second reading.
  bool is_above();
  // The load of the latest reading.
  double latest() const { return load_; }

 private:
  const double most_;
  const std::function<ProcessorTimes()> read_;
  ProcessorTimes last_;
  double load_ = 0;
  int calm_ = 0;  // readings in a row that had not more, up to three
  bool is_first_ = true;
};

}  // namespace troika
