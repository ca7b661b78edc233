// `troika bench net`: the cost of messages of room `net` between two processes, compared with plain
// sockets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/cli/bench/net_side.h"

namespace troika::cli::bench {

// The arguments as typed. Lists are comma-separated.
struct NetWords {
  std::string operations = "round_trip,exchange,messages,death";
  std::string sizes = "4K,64K,1M,16M,64M";
  std::string streams = "1,2";
  std::string protections = "none,authenticated,encrypted";
  double min_time = 0.3;
};

enum class NetOperation : uint8_t {
  round_trip,  // a message and a reply
  exchange,    // a message in each direction at the same time
  messages,    // messages of 64 bytes in one direction
  death,       // from the SIGKILL of one process until the other learns of it
};

struct NetPlan {
  std::vector<NetOperation> operations;
  std::vector<int64_t> sizes;  // in bytes, for round_trip and exchange
  std::vector<NetVariant> variants;
  double min_seconds = 0;  // of each measurement
};

// Throws Error(bench, usage) for invalid arguments.
NetPlan make_net_plan(const NetWords& words);

struct NetRow {
  std::string operation, carrier, protection;
  int streams = 1;
  int64_t bytes = 0;  // of a message
  int64_t iterations = 0;
  double min_microseconds = 0, p50_microseconds = 0, p99_microseconds = 0;
  double low_microseconds = 0, high_microseconds = 0;  // confidence bounds of the median (Spread)
  double cpu_microseconds = 0;                         // CPU time of one process per iteration
  double bandwidth = 0;   // at p50, in each direction, in 1e9 bytes per second; 0 for death
  double times_bare = 0;  // p50 / (p50 of the same number of plain sockets); 0 if not measured
};

// Starts a second process, and measures the variants alternately. Blocks. The calling process must
// have only one thread.
std::vector<NetRow> measure_net(const NetPlan& plan);

std::string to_table(const std::vector<NetRow>& rows);
// Returns a BenchmarkRecord for a file, whose details are the fields of the rows.
std::string to_record(const std::vector<NetRow>& rows);

}  // namespace troika::cli::bench
