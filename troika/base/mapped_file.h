// Memory of a file instead of the machine's: for what is touched seldom.
#pragma once

#include <cstddef>
#include <filesystem>

namespace troika {

// `bytes` of zeros, page by page in memory while they are used. The file has no name, so nothing is
// left of it after any exit; its blocks are reserved at once, so that a full disk is an Error here,
// not a signal later. Throws Error (room `base`) naming the folder and the system's reason.
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& folder, size_t bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Has the pages of [begin, begin + bytes) read while the caller does other things.
  void prefetch(const void* begin, size_t bytes) const;
  // Takes the whole pages of [begin, begin + bytes) out of this process's memory; the system writes
  // them when it needs theirs. They come back with their content when touched.
  void release(const void* begin, size_t bytes) const;

 private:
  char* data_ = nullptr;
  size_t size_;
};

}  // namespace troika
