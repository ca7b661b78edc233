// Snapshots of a parameter server: a folder with a file for each range of the ring, and an index
// with the tables, the step, and the files' checksums. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "troika/server/table.h"

namespace troika::server {

// The file of a range.
struct SavedRange {
  uint32_t range = 0;
  std::string file;  // its name in the folder
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the content

  bool operator==(const SavedRange&) const = default;
};

struct SnapshotIndex {
  int64_t step = -1;  // the values include all steps up to this one, and none after it
  std::vector<TableSpec> tables;
  std::vector<SavedRange> ranges;  // in their order, each once

  bool operator==(const SnapshotIndex&) const = default;
};

// Writes a file of a range into the folder, which must exist, and syncs it. `server` makes the
// file's name unique.
SavedRange write_range(const std::filesystem::path& folder, uint32_t range,
                       const std::string& server, const std::string& content);
// Throws Error(server, failure) if the content is not the one that was written.
std::string read_range(const std::filesystem::path& folder, const SavedRange& saved);

void write_index(const std::filesystem::path& folder, const SnapshotIndex& index);
// Throws Error(server, usage) if the folder has no whole index.
SnapshotIndex read_index(const std::filesystem::path& folder);

}  // namespace troika::server
