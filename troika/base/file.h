// Files that are either whole or not there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace troika {

// Throws Error(room `base`) naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes under a temporary name beside `path`, syncs, renames over `path` and syncs the folder: a
// reader or a crash at any instant finds the old content or the new one, never a part. Creates
// missing parent folders.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Makes the folder and its parents; throws Error when it cannot.
void make_folder(const std::filesystem::path& path);

// Flushes what was written under `path` (a file or a folder) to the disk.
void sync_path(const std::filesystem::path& path);

}  // namespace troika
