// The measurements as rows: statistics, table, JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/comm/call.h"

namespace troika::cli::bench {

struct Row {
  std::string operation, backend, algorithm, buffers, dtype;
  int ranks = 0;
  int64_t bytes = 0;  // of the whole tensor
  int64_t iterations = 0;
  // The times of a call, on the rank where it took longest.
  double min_microseconds = 0, p50_microseconds = 0, p99_microseconds = 0;
  // The bounds of the median (Spread).
  double low_microseconds = 0, high_microseconds = 0;
  // At p50, in 1e9 bytes a second.
  double algorithm_bandwidth = 0;  // bytes / time
  double bus_bandwidth = 0;        // the same times bus_factor()
  bool is_reference = false;       // a peer or the limit: what back ends are compared with
  std::string library = {};        // of a peer that is not LibTorch, e.g. "Open MPI v4.1.4"
};

// The least that must pass each rank's link, per byte of the tensor; with it the numbers of
// different operations and numbers of ranks compare (PERFORMANCE.md of nccl-tests).
double bus_factor(comm::Operation operation, int ranks);

// Fills in the numbers from the seconds of each call; there must be one at least.
void set_times(Row& row, comm::Operation operation, std::vector<double> seconds);

// The line of titles, and one for a row below it: of one width, so that rows can be printed as they
// are measured.
std::string titles();
std::string to_line(const Row& row);

// A line for each number of ranks and size: the bus bandwidths of shm and tcp divided by those of
// the references. Empty without either.
std::string to_ratios(const std::vector<Row>& rows);

// From one process to another.
std::string to_text(const std::vector<Row>& rows);
std::vector<Row> from_text(const std::string& text);

// For files that are kept: a BenchmarkRecord whose details are the fields of the rows.
std::string to_record(const std::vector<Row>& rows);
// An empty one with this program's versions.
BenchmarkRecord make_record(const std::string& name);

// The nearest-rank percentile of sorted values.
double percentile(const std::vector<double>& sorted, double share);

}  // namespace troika::cli::bench
