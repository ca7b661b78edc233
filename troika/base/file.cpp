#include "troika/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "troika/base/error.h"

namespace troika {

namespace {

[[noreturn]] void fail(std::string_view action, const std::filesystem::path& path, int error) {
  throw Error(
      "base",
      error == ENOENT || error == EACCES || error == EISDIR ? ErrorKind::usage : ErrorKind::failure,
      {.what = fmt::format("cannot {} {}", action, path.string()), .got = std::strerror(error)});
}

constexpr mode_t kFileMode = 0644;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Whether users other than this one and root can create files in the folder.
bool is_open_to_others(const struct stat& folder) {
  const bool is_others = folder.st_uid != ::geteuid() && folder.st_uid != 0;
  return is_others || (folder.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

struct stat status_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("read", path, errno);
  return status;
}

[[noreturn]] void refuse(const std::filesystem::path& path, std::string got) {
  throw Error("base", ErrorKind::usage,
              {.what = fmt::format("cannot write {} where other users can write", path.string()),
               .got = std::move(got),
               .expected = "no file, or a regular file of this user",
               .hint = "remove it, or choose a folder that only you can write into"});
}

// Throws Error if another user may have planted this file.
void require_own(const struct stat& file, const std::filesystem::path& path) {
  if (!S_ISREG(file.st_mode)) refuse(path, "no regular file");
  if (file.st_uid != ::geteuid()) refuse(path, fmt::format("a file of user {}", file.st_uid));
  if (file.st_nlink != 1) refuse(path, fmt::format("a file with {} names", file.st_nlink));
}

// Owns a descriptor, for exception safety.
class OpenDescriptor {
 public:
  explicit OpenDescriptor(int fd) : fd_(fd) {}
  ~OpenDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenDescriptor(const OpenDescriptor&) = delete;
  OpenDescriptor& operator=(const OpenDescriptor&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Opens a file in a folder that other users can write into, as described at File's constructor.
// Returns -1 and sets errno on failure.
int open_among_others(int folder, const std::filesystem::path& path, int flags) {
  const auto name = path.filename();
  if (flags & O_CREAT) {
    const int created = ::openat(folder, name.c_str(), flags | O_EXCL, kFileMode);
    if (created >= 0 || errno != EEXIST || (flags & O_EXCL)) return created;
  }
  // O_NONBLOCK: opening a FIFO must not block until its other end is open.
  const int kept = (flags & ~(O_CREAT | O_TRUNC)) | O_NOFOLLOW | O_NONBLOCK;
  OpenDescriptor file(::openat(folder, name.c_str(), kept));
  if (file.get() < 0 && errno == ELOOP) refuse(path, "a symbolic link");
  if (file.get() < 0) return -1;
  require_own(status_of(file.get(), path), path);
  if ((flags & O_TRUNC) && ::ftruncate(file.get(), 0) != 0) fail("truncate", path, errno);
  return file.release();
}

int open_file(const std::filesystem::path& path, int flags) {
  flags |= O_CLOEXEC;
  if ((flags & (O_ACCMODE | O_CREAT)) == O_RDONLY) return ::open(path.c_str(), flags);
  // Opens relative to the checked folder, so that renaming the path meanwhile has no effect.
  const OpenDescriptor folder(::open(folder_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return -1;
  if (is_open_to_others(status_of(folder.get(), path))) {
    return open_among_others(folder.get(), path, flags);
  }
  return ::openat(folder.get(), path.filename().c_str(), flags, kFileMode);
}

}  // namespace

File::File(std::filesystem::path path, int flags)
    : path_(std::move(path)), fd_(open_file(path_, flags)) {
  if (fd_ < 0) fail("open", path_, errno);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int64_t File::size() const {
  const auto status = status_of(fd_, path_);
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

void File::reserve(int64_t bytes) const {
  // Errors are ignored: the file system may not support it, and a full disk is reported by write().
  if (bytes > 0) ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, bytes);
}

void File::start_sync() const {
  // Errors are ignored: sync() writes the remaining pages and reports errors.
  ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
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
  const auto folder = folder_of(path);
  make_folder(folder);
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", path.string(), random_name());
  write_new_file(temporary, produce);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail("rename onto", path, error);
  }
  sync_path(folder);
}

void write_new_file(const std::filesystem::path& path,
                    const std::function<void(const File&)>& produce) {
  const File file(path, O_WRONLY | O_CREAT | O_EXCL);
  try {
    produce(file);
    file.sync();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("create folder", path, error.value());
}

void make_own_folder(const std::filesystem::path& path) {
  const auto parent = folder_of(path);
  make_folder(parent);
  struct stat status {};
  if (::stat(parent.c_str(), &status) != 0) fail("read", parent, errno);
  const bool is_open = is_open_to_others(status);
  if (::mkdir(path.c_str(), is_open ? 0700 : 0777) == 0) return;
  if (errno != EEXIST) fail("create folder", path, errno);
  if (!is_open) return;
  if (::lstat(path.c_str(), &status) != 0) fail("read", path, errno);
  if (S_ISDIR(status.st_mode) && (status.st_uid == ::geteuid() || status.st_uid == 0)) return;
  throw Error(
      "base", ErrorKind::usage,
      {.what = "cannot use " + path.string(),
       .got = "a link or another user's folder",
       .expected = "a folder of this user, because others can write to the folder around it"});
}

std::string random_name() {
  std::random_device source;
  const auto digits = [&] { return fmt::format("{:08x}", source()); };
  return digits() + digits() + digits() + digits();
}

void sync_path(const std::filesystem::path& path) {
  File(path, O_RDONLY).sync();
}

}  // namespace troika
