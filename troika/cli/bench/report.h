// Benchmark results as rows: statistics, table, JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/comm/call/call.h"

namespace troika::cli::bench {

struct Row {
  std::string operation, backend, algorithm, buffers, dtype;
  int ranks = 0;
  int64_t bytes = 0;  // of the whole tensor
  int64_t iterations = 0;
  // The times of a call on its slowest rank.
  double min_microseconds = 0, p50_microseconds = 0, p99_microseconds = 0;
  // The confidence bounds of the median (Spread).
  double low_microseconds = 0, high_microseconds = 0;
  // At p50, in 1e9 bytes per second.
  double algorithm_bandwidth = 0;  // bytes / time
  double bus_bandwidth = 0;        // algorithm_bandwidth * bus_factor()
  bool is_reference = false;       // a peer or the limit, with which back ends are compared
  std::string library = {};        // of a peer outside LibTorch, for example "Open MPI v4.1.4"
};

// The minimum traffic through each rank's link per byte of the tensor. It makes different
// operations and numbers of ranks comparable (PERFORMANCE.md of nccl-tests).
double bus_factor(comm::Operation operation, int ranks);

// Fills in the statistics from the seconds of each call; `seconds` must not be empty.
void set_times(Row& row, comm::Operation operation, std::vector<double> seconds);

// Format the line of titles and the line of one row, in columns of fixed width, so that rows can be
// printed as they are measured.
std::string titles();
std::string to_line(const Row& row);

// For each number of ranks and size, a line with the bus bandwidths of shm and tcp divided by those
// of the references. Empty without back ends or without references.
std::string to_ratios(const std::vector<Row>& rows);

// Serialize rows from one process to another.
std::string to_text(const std::vector<Row>& rows);
std::vector<Row> from_text(const std::string& text);

// Returns a BenchmarkRecord for a file, whose details are the fields of the rows.
std::string to_record(const std::vector<Row>& rows);
// Returns an empty record with this program's versions.
BenchmarkRecord make_record(const std::string& name);

// The nearest-rank percentile of sorted values; `share` is in [0, 1].
double percentile(const std::vector<double>& sorted, double share);

}  // namespace troika::cli::bench
