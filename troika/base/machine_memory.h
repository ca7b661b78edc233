// How much memory this process may still allocate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troika::memory {

struct Available {
  int64_t bytes = 0;
  std::string limit;  // the limiting resource: "this machine's memory", "the limit of cgroup /job"
};

// Returns the minimum of the machine's available memory (MemAvailable of proc(5)) and the memory
// left under the limits of this process's cgroup and its ancestors. Cached files count as free.
// Supports cgroups v1 and v2. Returns nullopt if the system provides none of these. `root` is the
// folder that contains /proc and /sys. Takes about 0.1 ms; any thread may call it.
std::optional<Available> available(const std::filesystem::path& root = "/");

// Resident memory of this process in bytes; 0 if unknown.
int64_t resident();
// The part of resident() that is backed by files (such as libraries) or shared memory. Processes
// that map the same file share these pages.
int64_t resident_files();

}  // namespace troika::memory
