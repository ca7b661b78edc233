// The content of a file, as memory of the system that all processes which read it share.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace troika {

// Maps a file for reading: its pages are read when they are touched, and the system may drop them
// again. The file must not become shorter while this object lives: touching what it has lost ends
// the process by SIGBUS. A file that is replaced by a rename keeps its old content here.
class FileView {
 public:
  // Throws Error (room `base`) naming the path and the reason, also for what is no regular file.
  explicit FileView(const std::filesystem::path& path);
  ~FileView();
  FileView(FileView&& other) noexcept;
  FileView& operator=(FileView&&) = delete;

  std::string_view content() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;  // none for an empty file
  size_t size_ = 0;
};

}  // namespace troika
