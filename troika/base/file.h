// Files that are either whole or not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace troika {

// An open file. Every failure is an Error (room `base`) naming the path and the system's reason;
// what write() was given is with the system when it returns, so it survives a kill of this process.
class File {
 public:
  // `flags` as open(2) takes them. In a folder that other users can write into (its owner is
  // neither this user nor root, or its group or everybody may write), a file is opened for writing
  // only if it is new, or a regular file of this user with one name: a link, or a file that
  // somebody else put there, is an Error(usage), and what it leads to is not touched.
  File(std::filesystem::path path, int flags);
  ~File();
  File(File&& other) noexcept;
  File& operator=(const File&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const;
  void write(std::string_view content) const;
  // Writes at this offset from the start, whatever was written before.
  void write_at(int64_t offset, std::string_view content) const;
  // Fills the whole buffer; a file that ends earlier is an Error.
  void read_at(int64_t offset, std::span<char> buffer) const;
  void truncate(int64_t size) const;
  // Has the file system set this many bytes aside at once, where it can: they are written faster.
  void reserve(int64_t bytes) const;
  // Has the system begin to write what it was given to the disk: sync() then has less to wait for.
  void start_sync() const;
  // Waits until all that was written is on the disk.
  void sync() const;

 private:
  std::filesystem::path path_;
  int fd_;
};

// Throws Error(room `base`) naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Creates a file with a random name beside `path`, writes and syncs it, renames it over `path` and
// syncs the folder: a reader or a crash at any instant finds the old content or the new one, never
// a part. A link at `path` is replaced, not followed. Creates missing parent folders.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The same for content made in pieces, which need not fit in memory together: `produce` writes
// them. When it throws, nothing has changed.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const File&)>& produce);

// The same for a file of a folder that is made as a whole: creates `path`, which must not exist,
// and syncs it. The caller makes the folder, syncs it, and renames it when all its files are there.
void write_new_file(const std::filesystem::path& path,
                    const std::function<void(const File&)>& produce);

// Makes the folder and its parents; throws Error when it cannot.
void make_folder(const std::filesystem::path& path);

// The same, but where other users can write into the parent folder (see File), a folder that is
// made gets mode 0700, and one that is there must be this user's or root's, and no link: Error
// (usage).
void make_own_folder(const std::filesystem::path& path);

// 32 hexadecimal digits from the system's source of random numbers, for a name nobody can guess.
std::string random_name();

// Flushes what was written under `path` (a file or a folder) to the disk.
void sync_path(const std::filesystem::path& path);

}  // namespace troika
