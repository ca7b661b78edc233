// File access with checked errors, and files that appear whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// An open file. Every failure throws Error (room `base`) with the path and the system's reason.
// When write() returns, the kernel has the data, so it survives a kill of this process.
class File {
 public:
  // `flags` are those of open(2). A shared folder is one that other users can write into: its owner
  // is neither this user nor root, or its group or everybody has write permission. In a shared
  // folder, a file opened for writing must be new, or a regular file of this user with one hard
  // link. Otherwise (a link, or another user's file) throws Error(usage) and does not touch the
  // link's target.
  File(std::filesystem::path path, int flags);
  ~File();
  File(File&& other) noexcept;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;
  void write(std::string_view content) const;
  // Writes at `offset` from the start of the file. Does not move the position of write().
  void write_at(int64_t offset, std::string_view content) const;
  // Fills the whole buffer. Throws Error if the file ends earlier.
  void read_at(int64_t offset, std::span<char> buffer) const;
  // Asks the file system to allocate this many bytes now, which makes later writes faster. Does
  // nothing where the file system cannot.
  void reserve(int64_t bytes) const;
  // Starts writing the file's dirty pages to disk without waiting, so that sync() waits less.
  void start_sync() const;
  // Blocks until all written data is on disk.
  void sync() const;

 private:
  std::filesystem::path path_;
  int fd_;
};

// Returns the whole content. Throws Error(room `base`) with the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes and syncs a temporary file beside `path`, renames it over `path` and syncs the folder. A
// reader, or a crash at any time, sees either the old or the new content, never a part. Replaces a
// link at `path` instead of following it. Creates missing parent folders.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Like the function above, for content written in pieces by `produce`. If `produce` throws, nothing
// has changed.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const File&)>& produce);

// Creates `path`, which must not exist, and syncs it. For a folder that must appear as a whole: the
// caller creates the folder, syncs it and renames it once all of its files are written. If
// `produce` throws, the file is removed.
void write_new_file(const std::filesystem::path& path,
                    const std::function<void(const File&)>& produce);

// Creates the folder and its parents. Throws Error on failure.
void make_folder(const std::filesystem::path& path);

// Like make_folder(), but safe in a parent folder that other users can write into (see File). There
// a new folder gets mode 0700, and an existing one must belong to this user or root and must not be
// a link; otherwise throws Error(usage).
void make_own_folder(const std::filesystem::path& path);

// Returns 32 random hexadecimal digits from the system's generator, for a name that cannot be
// guessed.
std::string random_name();

// Syncs `path` (a file or a folder) to disk.
void sync_path(const std::filesystem::path& path);

}  // namespace troika
