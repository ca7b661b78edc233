#include "troika/base/file_view.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "troika/base/error.h"

namespace troika {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& got,
                       const std::string& expected = {}) {
  throw Error(
      "base", ErrorKind::usage,
      {.what = fmt::format("cannot read {}", path.string()), .got = got, .expected = expected});
}

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ < 0) fail(path, std::strerror(errno));
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

 private:
  const int number_;
};

}  // namespace

FileView::FileView(const std::filesystem::path& path) {
  const Descriptor file(path);
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) fail(path, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail(path, std::strerror(EISDIR));
  if (!S_ISREG(status.st_mode)) fail(path, "a pipe or a device", "a regular file");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) fail(path, std::strerror(errno));
  data_ = static_cast<const char*>(memory);
}

FileView::~FileView() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
}

FileView::FileView(FileView&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace troika
