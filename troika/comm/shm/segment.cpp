#include "troika/comm/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "troika/base/error.h"

namespace troika::comm::shm {

namespace {

std::string reason() {
  return std::strerror(errno);
}

char* map(int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

}  // namespace

Segment Segment::create(size_t bytes) {
  const int fd = ::memfd_create("troika", MFD_CLOEXEC);
  char* data = nullptr;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) data = map(fd, bytes);
  if (!data) {
    const std::string why = reason();
    if (fd >= 0) ::close(fd);
    throw Error("comm", ErrorKind::failure,
                {.what = fmt::format("cannot make {} bytes of shared memory", bytes), .got = why});
  }
  return {data, bytes, fd};
}

Segment Segment::open(pid_t pid, int fd, size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const auto refuse = [&](const std::string& why) {
    throw Error("comm", ErrorKind::usage,
                {.what = "cannot open the shared memory of process " + std::to_string(pid),
                 .got = why,
                 .expected = "a process of the same user in the same PID namespace",
                 .hint = "choose back end tcp for ranks in containers of their own"});
  };
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) refuse(reason());
  struct stat status {};
  char* data = nullptr;
  const bool fits = ::fstat(own, &status) == 0 && static_cast<size_t>(status.st_size) == bytes;
  if (fits) data = map(own, bytes);
  const std::string why = fits ? reason() : "another size";
  ::close(own);
  if (!data) refuse(why);
  return {data, bytes, -1};
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      fd_(std::exchange(other.fd_, -1)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

Segment::~Segment() {
  if (data_) ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace troika::comm::shm
