// `troika bench net`: what messages of the room `net` cost between two processes, beside plain
// sockets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/cli/bench/net_side.h"

namespace troika::cli::bench {

// As typed. Lists are separated by commas.
struct NetWords {
  std::string operations = "round_trip,exchange,messages,death";
  std::string sizes = "4K,64K,1M,16M,64M";
  std::string streams = "1,2";
  std::string protections = "none,authenticated,encrypted";
  double min_time = 0.3;
};

enum class NetOperation : uint8_t {
  round_trip,  // a message there and one back
  exchange,    // a message each way at the same time
  messages,    // messages of 64 bytes, one way
  death,       // from a SIGKILL of one process to the news at the other
};

struct NetPlan {
  std::vector<NetOperation> operations;
  std::vector<int64_t> sizes;  // bytes, of round_trip and exchange
  std::vector<NetVariant> variants;
  double min_seconds = 0;  // of each measurement
};

// Throws Error(bench, usage) for words that mean nothing.
NetPlan make_net_plan(const NetWords& words);

struct NetRow {
  std::string operation, carrier, protection;
  int streams = 1;
  int64_t bytes = 0;  // of a message
  int64_t iterations = 0;
  double min_microseconds = 0, p50_microseconds = 0, p99_microseconds = 0;
  double low_microseconds = 0, high_microseconds = 0;  // the bounds of the median (Spread)
  double cpu_microseconds = 0;                         // of one of the processes, an iteration
  double bandwidth = 0;   // at p50, each way, in 1e9 bytes a second; 0 for death
  double times_bare = 0;  // p50 over that of bare sockets of the same number; 0 without those
};

// Starts a second process, and measures the variants in turns. Blocks. For a process with one
// thread.
std::vector<NetRow> measure_net(const NetPlan& plan);

std::string to_table(const std::vector<NetRow>& rows);
// For files that are kept: a BenchmarkRecord whose details are the fields of the rows.
std::string to_record(const std::vector<NetRow>& rows);

}  // namespace troika::cli::bench
