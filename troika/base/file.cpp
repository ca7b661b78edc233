#include "troika/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "troika/base/error.h"

namespace troika {

namespace {

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error) {
  throw Error(
      "base", error == ENOENT || error == EACCES ? ErrorKind::usage : ErrorKind::failure,
      {.what = fmt::format("cannot {} {}", action, path.string()), .got = std::strerror(error)});
}

class File {
 public:
  File(const std::filesystem::path& path, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail("open", path_, errno);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(std::string_view content) const {
    while (!content.empty()) {
      const ssize_t written = ::write(fd_, content.data(), content.size());
      if (written < 0 && errno != EINTR) fail("write", path_, errno);
      if (written > 0) content.remove_prefix(static_cast<size_t>(written));
    }
  }
  void sync() const {
    if (::fsync(fd_) != 0) fail("sync", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int fd_;
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("read", path, errno);
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad() || std::filesystem::is_directory(path)) fail("read", path, EISDIR);
  return std::move(content).str();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  make_folder(folder);
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  try {
    {
      const File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
      file.write(content);
      file.sync();
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename onto", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(folder);
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("create folder", path, error.value());
}

void sync_path(const std::filesystem::path& path) {
  File(path, O_RDONLY).sync();
}

}  // namespace troika
