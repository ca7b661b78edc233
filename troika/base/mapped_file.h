// Memory backed by a file instead of RAM, for data that is rarely accessed.
#pragma once

#include <cstddef>
#include <filesystem>

namespace troika {

// A zero-filled region of `bytes` bytes. Its pages are in RAM only while they are used. The backing
// file is unlinked, so nothing remains after any kind of exit. Its disk blocks are allocated in the
// constructor, so a full disk throws Error here instead of raising a signal later. The constructor
// throws Error (room `base`) with the folder and the system's reason.
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& folder, size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Starts reading the pages of [begin, begin + bytes) in the background.
  void prefetch(const void* begin, size_t bytes) const;
  // Drops the whole pages within [begin, begin + bytes) from this process's resident memory. Their
  // content is kept: the kernel writes dirty pages to the file when needed, and the next access
  // loads them again.
  void release(const void* begin, size_t bytes) const;

 private:
  char* data_ = nullptr;
  size_t size_;
};

}  // namespace troika
