// The resources that a process uses, for tests that check that nothing grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace troika::test {

struct ProcessUsage {
  int64_t resident_bytes = 0;  // without shared memory
  int64_t shared_bytes = 0;  // in memory shared with other processes (memfd and /dev/shm), resident
  int64_t descriptors = 0;
};

inline ProcessUsage process_usage() {
  ProcessUsage usage;
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    int64_t kilobytes = 0;
    if (name == "RssAnon:" && status >> kilobytes) usage.resident_bytes = kilobytes << 10;
    if (name == "RssShmem:" && status >> kilobytes) usage.shared_bytes = kilobytes << 10;
  }
  const std::filesystem::directory_iterator all("/proc/self/fd");
  // One descriptor belongs to the iterator.
  usage.descriptors = std::distance(begin(all), end(all)) - 1;
  return usage;
}

}  // namespace troika::test
