#include "troika/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "troika/base/error.h"

namespace troika {

namespace {

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error) {
  throw Error(
      "base", error == ENOENT || error == EACCES ? ErrorKind::usage : ErrorKind::failure,
      {.what = fmt::format("cannot {} {}", action, path.string()), .got = std::strerror(error)});
}

}  // namespace

File::File(std::filesystem::path path, int flags)
    : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0644)) {
  if (fd_ < 0) fail("open", path_, errno);
}

File::~File() {
  ::close(fd_);
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail("read", path_, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path_, EISDIR);
  return status.st_size;
}

void File::write(std::string_view content) const {
  while (!content.empty()) {
    const ssize_t written = ::write(fd_, content.data(), content.size());
    if (written < 0 && errno != EINTR) fail("write", path_, errno);
    if (written > 0) content.remove_prefix(static_cast<size_t>(written));
  }
}

void File::write_at(int64_t offset, std::string_view content) const {
  while (!content.empty()) {
    const ssize_t written = ::pwrite(fd_, content.data(), content.size(), offset);
    if (written < 0 && errno != EINTR) fail("write", path_, errno);
    if (written > 0) {
      content.remove_prefix(static_cast<size_t>(written));
      offset += written;
    }
  }
}

void File::read_at(int64_t offset, std::span<char> buffer) const {
  while (!buffer.empty()) {
    const ssize_t read = ::pread(fd_, buffer.data(), buffer.size(), offset);
    if (read < 0 && errno != EINTR) fail("read", path_, errno);
    if (read == 0) {
      throw Error("base", ErrorKind::usage,
                  {.what = fmt::format("cannot read {}", path_.string()),
                   .got = fmt::format("its end at byte {}", offset),
                   .expected = fmt::format("{} more bytes", buffer.size())});
    }
    if (read > 0) {
      buffer = buffer.subspan(static_cast<size_t>(read));
      offset += read;
    }
  }
}

void File::truncate(int64_t size) const {
  if (::ftruncate(fd_, size) != 0) fail("truncate", path_, errno);
}

void File::sync() const {
  if (::fsync(fd_) != 0) fail("sync", path_, errno);
}

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
  write_file_atomically(path, [content](const File& file) { file.write(content); });
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const File&)>& produce) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  make_folder(folder);
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  try {
    {
      const File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
      produce(file);
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
