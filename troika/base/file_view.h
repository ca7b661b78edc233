// A read-only memory map of a file. Its pages are in the page cache, shared by all processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace troika {

// Maps a file for reading. Pages are loaded on first access and may be evicted again. The file must
// not shrink while this object lives: accessing the removed part raises SIGBUS. If the file is
// replaced by a rename, the view keeps the old content.
class FileView {
 public:
  // Throws Error (room `base`) with the path and the reason, also if `path` is not a regular file.
  explicit FileView(const std::filesystem::path& path);
  ~FileView();
  FileView(FileView&& other) noexcept;
  FileView& operator=(FileView&&) = delete;

  std::string_view content() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;  // null for an empty file
  size_t size_ = 0;
};

}  // namespace troika
